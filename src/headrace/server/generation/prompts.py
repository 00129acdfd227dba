"""Prompts: text, token ids or messages → token ids that fit, and prepared requests of the engine."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Callable
from typing import Any, TypeVar

import msgspec

from headrace.core.errors import ContextLengthError, InvalidRequestError
from headrace.core.params import SamplingParams
from headrace.server.generation.sampling import max_tokens_of, output_room, sampling_params
from headrace.server.limits import Limits
from headrace.server.schemas.chat import ChatCompletionRequest
from headrace.server.schemas.common import GenerationRequest
from headrace.server.schemas.completions import CompletionRequest, Prompt
from headrace.server.schemas.service import TokenizeRequest
from headrace.server.serving import AsyncEngine, PreparedRequest, Serving

T = TypeVar("T")

_RENDER_ARGUMENTS = frozenset({"self", "messages", "tools", "add_generation_prompt", "continue_final_message"})
"""What chat_template_kwargs may not replace."""


def split_prompts(prompt: Prompt, limits: Limits) -> list[str | list[int]]:
    """The prompts of a completion request: a text, texts, ids, or lists of ids. Never empty, none of them empty.

    Raises InvalidRequestError (param `prompt`).
    """
    if isinstance(prompt, str):
        found: list[Any] = [prompt]
    elif prompt and all(isinstance(item, int) for item in prompt):
        found = [prompt]
    elif all(isinstance(item, str) for item in prompt) or all(isinstance(item, list) for item in prompt):
        found = list(prompt)
    else:
        raise InvalidRequestError("prompt mixes texts, token ids and lists; send one kind", param="prompt")
    if not found:
        raise InvalidRequestError("prompt is an empty list", param="prompt")
    if len(found) > limits.max_choices:
        raise InvalidRequestError(
            f"prompt has {len(found)} prompts; one request takes at most {limits.max_choices}", param="prompt"
        )
    if not all(found):
        raise InvalidRequestError("prompt must not be empty", param="prompt")
    return found


async def token_ids(
    llm: AsyncEngine, prompt: str | list[int], limits: Limits, *, param: str, add_special_tokens: bool
) -> list[int]:
    """`prompt` as ids of this model. Raises InvalidRequestError, ContextLengthError."""
    if isinstance(prompt, str):
        limit = llm.max_model_len * limits.max_prompt_chars_per_token
        if len(prompt) > limit:
            raise ContextLengthError(
                f"{param} has {len(prompt)} characters, which cannot fit the context of {llm.max_model_len} tokens",
                param=param,
            )
        ids: list[int] = await _run(
            len(prompt), limits, lambda: llm.tokenizer.encode(prompt, add_special_tokens=add_special_tokens)
        )
        if not ids:
            raise InvalidRequestError(f"{param} is empty: it makes no token", param=param)
        return ids
    return prompt


async def chat_token_ids(llm: AsyncEngine, body: ChatCompletionRequest | TokenizeRequest, limits: Limits) -> list[int]:
    """The conversation, rendered by the model's template, as ids. Raises InvalidRequestError naming the message."""
    text = await render_chat(llm, body, limits)
    special = body.add_special_tokens if isinstance(body, TokenizeRequest) else None
    return await token_ids(llm, text, limits, param="messages", add_special_tokens=bool(special))


async def render_chat(llm: AsyncEngine, body: ChatCompletionRequest | TokenizeRequest, limits: Limits) -> str:
    """The text that the chat template makes of `body`."""
    template = llm.chat_template
    if template is None:
        raise InvalidRequestError(
            "this model has no chat template: use /v1/completions, or start the server with --chat-template",
            param="messages",
        )
    variables = body.chat_template_kwargs or {}
    for name in variables:
        if name in _RENDER_ARGUMENTS or not name.isidentifier():
            raise InvalidRequestError(
                f"chat_template_kwargs may not set {name[:100]!r}", param=f"chat_template_kwargs.{name[:100]}"
            )
    tools = None
    if body.tools and not (isinstance(body, ChatCompletionRequest) and body.tool_choice == "none"):
        tools = msgspec.to_builtins(body.tools)
    continues = bool(body.continue_final_message)
    begins = not continues if body.add_generation_prompt is None else body.add_generation_prompt

    def render() -> str:
        rendered: str = template.render(
            msgspec.to_builtins(body.messages),
            tools=tools,
            add_generation_prompt=begins,
            continue_final_message=continues,
            **variables,
        )
        return rendered

    num_chars = sum(len(m.content) if isinstance(m.content, str) else limits.inline_chars for m in body.messages or [])
    return await _run(num_chars, limits, render)


async def _run(num_chars: int, limits: Limits, work: Callable[[], T]) -> T:
    """Long texts are worked on in a thread, so that other requests' tokens keep flowing."""
    return work() if num_chars <= limits.inline_chars else await asyncio.to_thread(work)


def prepare(
    serving: Serving,
    body: GenerationRequest,
    prompts: list[list[int]],
    *,
    logprobs: int | None,
    prompt_logprobs: int | None = None,
) -> list[PreparedRequest]:
    """Requests of the engine, one per prompt. Raises InvalidRequestError, ContextLengthError."""
    num_choices = len(prompts) * (body.n or 1)
    if num_choices > serving.limits.max_choices:
        raise InvalidRequestError(
            f"{len(prompts)} prompts times n={body.n} are {num_choices} outputs; "
            f"one request takes at most {serving.limits.max_choices}",
            param="n",
        )
    llm = serving.llm
    param = "prompt" if isinstance(body, CompletionRequest) else "messages"
    asked = max_tokens_of(body)
    rooms = [output_room(asked, len(ids), llm.max_model_len, param=param) for ids in prompts]
    made: dict[int, SamplingParams] = {}
    for room in rooms:
        if room not in made:
            made[room] = sampling_params(
                body,
                max_tokens=room,
                logprobs=logprobs,
                prompt_logprobs=prompt_logprobs,
            )
    return [
        llm.prepare(
            ids,
            made[room],
            request_id=uuid.uuid4().hex,
            priority=body.priority or 0,
            cache_salt=body.cache_salt,
        )
        for ids, room in zip(prompts, rooms, strict=True)
    ]
