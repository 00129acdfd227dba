"""Front: from what a caller wrote to engine requests that cannot be wrong any more."""

from __future__ import annotations

import contextlib
import random
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from headrace.config.engine import EngineConfig
from headrace.core.errors import ContextLengthError, InvalidRequestError, ModelFileError
from headrace.core.params import SamplingParams
from headrace.core.request import EngineRequest
from headrace.core.stats import EngineInfo
from headrace.text.chat_template import ChatTemplate
from headrace.text.tokenizer import Tokenizer

MAX_CACHE_SALT_CHARS = 1024
MAX_PROMPT_CHARS_PER_TOKEN = 64
"""Texts longer than this many characters per context token are refused before they are tokenised."""

Prompt = str | list[int]


@dataclass(frozen=True, slots=True)
class PreparedRequest:
    """A validated prompt with its n engine requests."""

    request_id: str
    prompt: str | None
    prompt_token_ids: list[int]
    params: SamplingParams
    requests: list[EngineRequest]


class TextSource(Protocol):
    """The part of `weights.Checkpoint` and of `weights.TextSource` that a front is built from."""

    @property
    def tokenizer_source(self) -> Mapping[str, Any] | Path: ...
    @property
    def chat_template(self) -> str | None: ...


class Front:
    """Tokenises and validates. Knows the model's limits; holds no request."""

    def __init__(self, tokenizer: Tokenizer, chat_template: ChatTemplate | None, config: EngineConfig) -> None:
        self.tokenizer, self.chat_template = tokenizer, chat_template
        self._config = config
        self._max_model_len = self._vocab_size = 0
        self._seeds = random.Random(config.seed)

    def set_limits(self, info: EngineInfo) -> None:
        """What the engine has found out; nothing can be prepared before."""
        self._max_model_len, self._vocab_size = info.max_model_len, info.vocab_size

    def prepare(
        self,
        prompt: Prompt,
        params: SamplingParams,
        *,
        request_id: str,
        priority: int = 0,
        cache_salt: str | None = None,
        add_special_tokens: bool = True,
    ) -> PreparedRequest:
        """Raise InvalidRequestError or ContextLengthError, or return a request that the engine will take."""
        text = prompt if isinstance(prompt, str) else None
        ids = self._token_ids(prompt, add_special_tokens)
        max_tokens = self._max_tokens(len(ids), params)
        if cache_salt is not None and not 0 < len(cache_salt) <= MAX_CACHE_SALT_CHARS:
            raise InvalidRequestError(
                f"cache_salt must have 1 to {MAX_CACHE_SALT_CHARS} characters", param="cache_salt"
            )
        for name, asked in (("logprobs", params.logprobs), ("prompt_logprobs", params.prompt_logprobs)):
            if asked is not None and asked > self._config.max_top_logprobs:
                raise InvalidRequestError(
                    f"{name} is at most {self._config.max_top_logprobs} here, got {asked}", param=name
                )
        for token in params.logit_bias or ():
            if token >= self._vocab_size:
                raise InvalidRequestError(
                    f"logit_bias names token {token}; ids go up to {self._vocab_size - 1}", param="logit_bias"
                )
        stop_ids = set(params.stop_token_ids) | (set() if params.ignore_eos else set(self.tokenizer.eos_token_ids))
        seed = params.seed if params.seed is not None else self._seeds.getrandbits(63)
        requests = [
            EngineRequest(
                request_id=request_id if params.n == 1 else f"{request_id}#{index}",
                prompt_token_ids=ids,
                max_tokens=max_tokens,
                temperature=params.temperature,
                top_p=params.top_p,
                top_k=params.top_k,
                seed=seed,
                sample_index=index,
                stop_token_ids=sorted(stop_ids),
                logprobs=params.logprobs,
                prompt_logprobs=params.prompt_logprobs if index == 0 else None,
                logit_bias=dict(params.logit_bias or {}),
                priority=priority,
                arrival_s=time.monotonic(),
                cache_salt=cache_salt,
            )
            for index in range(params.n)
        ]
        return PreparedRequest(request_id, text, ids, params, requests)

    def warm_up(self) -> None:
        """Compile the chat template, which the first conversation would wait for otherwise."""
        if self.chat_template is not None:
            with contextlib.suppress(InvalidRequestError):  # whoever sends messages is told
                self.chat_template.render([{"role": "user", "content": "a"}])

    def render_chat(self, messages: list[dict[str, Any]], **options: Any) -> str:
        """The prompt text of a conversation. Raises InvalidRequestError when there is no template or it refuses."""
        if self.chat_template is None:
            raise InvalidRequestError(
                "the model has no chat template; give one with --chat-template, or use completions", param="messages"
            )
        return self.chat_template.render(messages, **options)

    def _token_ids(self, prompt: Prompt, add_special_tokens: bool) -> list[int]:
        if isinstance(prompt, str):
            if not prompt:
                raise InvalidRequestError("prompt must not be empty", param="prompt")
            if len(prompt) > self._max_model_len * MAX_PROMPT_CHARS_PER_TOKEN:
                raise ContextLengthError(
                    f"the prompt has {len(prompt)} characters, far more than the context of "
                    f"{self._max_model_len} tokens can hold",
                    param="prompt",
                )
            ids = self.tokenizer.encode(prompt, add_special_tokens)
        else:
            ids = list(prompt)
            for token in ids:
                if not isinstance(token, int) or isinstance(token, bool) or not 0 <= token < self._vocab_size:
                    raise InvalidRequestError(
                        f"prompt token ids must be integers from 0 to {self._vocab_size - 1}, got {token!r}",
                        param="prompt",
                    )
        if not ids:
            raise InvalidRequestError("prompt has no tokens", param="prompt")
        return ids

    def _max_tokens(self, num_prompt_tokens: int, params: SamplingParams) -> int:
        room = self._max_model_len - num_prompt_tokens
        if params.max_tokens == 0 and room >= 0:
            return 0
        if room < 1:
            raise ContextLengthError(
                f"the prompt has {num_prompt_tokens} tokens; the context is {self._max_model_len} tokens, "
                f"so a prompt may have at most {self._max_model_len - 1}",
                param="prompt",
            )
        if params.max_tokens is None:
            return room
        if params.max_tokens > room:
            raise ContextLengthError(
                f"the prompt has {num_prompt_tokens} tokens and max_tokens is {params.max_tokens}, but the context is "
                f"{self._max_model_len} tokens: max_tokens may be at most {room}",
                param="max_tokens",
            )
        return params.max_tokens


def build_front(config: EngineConfig, model: TextSource) -> Front:
    """Tokenizer and chat template of a model, or those that the options name instead."""
    if config.tokenizer is not None:
        tokenizer = Tokenizer.from_folder(Path(config.tokenizer))
    elif isinstance(model.tokenizer_source, Path):
        tokenizer = Tokenizer.from_folder(model.tokenizer_source)
    else:
        tokenizer = Tokenizer.from_gguf(model.tokenizer_source)
    source = model.chat_template
    if config.chat_template is not None:
        source = _template_text(config.chat_template)
    return Front(tokenizer, ChatTemplate(source, tokenizer.special_tokens) if source else None, config)


def _template_text(option: str) -> str:
    """A chat template given as text (it has Jinja marks) or as a file's path."""
    if "{%" in option or "{{" in option:
        return option
    try:
        return Path(option).read_text(encoding="utf-8")
    except OSError as fault:
        raise ModelFileError(f"chat template {option!r}: {fault.strerror}") from None
