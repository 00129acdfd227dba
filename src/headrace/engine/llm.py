"""LLM: the engine in this process, for scripts."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Self, cast

from headrace.config.engine import EngineConfig
from headrace.core.errors import EngineDeadError, InvalidRequestError, RequestFaultError
from headrace.core.outputs import CompletionOutput, RequestOutput
from headrace.core.params import SamplingParams
from headrace.core.stats import EngineInfo, EngineStats
from headrace.engine.completion import Completion, CompletionDelta
from headrace.engine.core import EngineCore
from headrace.engine.front import Front, PreparedRequest, Prompt, build_front
from headrace.text.messages import normalise_messages
from headrace.text.tokenizer import Tokenizer
from headrace.weights.checkpoint import open_checkpoint
from headrace.weights.hub import resolve_model

Messages = list[dict[str, Any]]
PROGRESS_FROM = 8
"""Batches of at least so many prompts show a progress bar."""


class LLM:
    """Loads a model and generates; vLLM's names and shapes.

    model: a name ("smollm2" is the demo model), a .gguf file or a folder in Hugging Face layout.
    options: any field of EngineConfig. Raises ConfigError, ModelFileError, UnsupportedModelError, CapacityError.
    Not thread-safe. `close` (or leaving a `with` block) gives all memory back.
    """

    def __init__(self, model: str = "smollm2", **options: Any) -> None:
        self.engine_config = EngineConfig.from_arguments(model=model, **options)
        checkpoint = open_checkpoint(resolve_model(model, self.engine_config.revision))
        self._front: Front = build_front(self.engine_config, checkpoint)
        self._core: EngineCore | None = EngineCore(self.engine_config, checkpoint=checkpoint)
        self._front.set_limits(self._core.info)
        self._ids = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def tokenizer(self) -> Tokenizer:
        return self._front.tokenizer

    @property
    def info(self) -> EngineInfo:
        """What the engine decided at start."""
        return self._live().info

    @property
    def core(self) -> EngineCore:
        """The running core. Raises EngineDeadError after `close`."""
        return self._live()

    def stats(self) -> EngineStats:
        """Gauges, counters and the memory table."""
        return self._live().stats()

    def generate(
        self,
        prompts: Prompt | Sequence[Prompt],
        sampling_params: SamplingParams | Sequence[SamplingParams] | None = None,
        *,
        use_tqdm: bool = True,
    ) -> list[RequestOutput]:
        """Complete each prompt (a text or its token ids); outputs come in the order of the prompts.

        sampling_params: one for all, or one per prompt. use_tqdm: show a progress bar for long batches.
        Raises InvalidRequestError before anything runs when a prompt or a parameter is wrong.
        """
        many = _as_list(prompts)
        params = _one_each(sampling_params, len(many))
        prepared = [self._prepare(p, sp) for p, sp in zip(many, params, strict=True)]
        return self._run_all(prepared, show_progress=use_tqdm)

    def chat(
        self,
        messages: Messages | Sequence[Messages],
        sampling_params: SamplingParams | Sequence[SamplingParams] | None = None,
        *,
        tools: list[dict[str, Any]] | None = None,
        add_generation_prompt: bool = True,
        use_tqdm: bool = True,
    ) -> list[RequestOutput]:
        """Answer one conversation, or several, through the model's chat template."""
        conversations = _as_conversations(messages)
        params = _one_each(sampling_params, len(conversations))
        prepared = [
            self._prepare_chat(m, sp, tools=tools, add_generation_prompt=add_generation_prompt)
            for m, sp in zip(conversations, params, strict=True)
        ]
        return self._run_all(prepared, show_progress=use_tqdm)

    def stream(
        self, prompt: Prompt | Messages, sampling_params: SamplingParams | None = None
    ) -> Iterator[CompletionDelta]:
        """Deltas of one prompt's completions as they come. A list of messages goes through the chat template.

        Leaving the loop early aborts the request.
        """
        params = sampling_params or SamplingParams()
        if isinstance(prompt, list) and prompt and isinstance(prompt[0], dict):
            prepared = self._prepare_chat(prompt, params)
        else:
            prepared = self._prepare(cast(Prompt, prompt), params)
        for _, delta in self._deltas([prepared]):
            yield delta

    def close(self) -> None:
        """End the engine and give its memory back. Idempotent."""
        if self._core is not None:
            self._core.close()
            self._core = None

    def _live(self) -> EngineCore:
        if self._core is None:
            raise EngineDeadError("the LLM was closed")
        return self._core

    def _prepare(self, prompt: Prompt, params: SamplingParams, **options: Any) -> PreparedRequest:
        self._live()
        self._ids += 1
        return self._front.prepare(prompt, params, request_id=str(self._ids), **options)

    def _prepare_chat(self, messages: Messages, params: SamplingParams, **options: Any) -> PreparedRequest:
        text = self._front.render_chat(normalise_messages(messages), **options)
        return self._prepare(text, params, add_special_tokens=False)

    def _run_all(self, prepared: list[PreparedRequest], *, show_progress: bool) -> list[RequestOutput]:
        outputs = [_empty_output(p) for p in prepared]
        left = [p.params.n for p in prepared]
        with _PromptBar(len(prepared), show_progress) as advance:
            for at, delta in self._deltas(prepared):
                _merge(outputs[at], delta)
                if delta.finish_reason is not None:
                    left[at] -= 1
                    if not left[at]:
                        outputs[at].finished = True
                        advance()
        return outputs

    def _deltas(self, prepared: list[PreparedRequest]) -> Iterator[tuple[int, CompletionDelta]]:
        """Run all requests to their end: (index of the prompt, delta). Aborts what is left when closed early."""
        core = self._live()
        running: dict[str, tuple[int, Completion]] = {}
        try:
            for at, p in enumerate(prepared):
                for index, request in enumerate(p.requests):
                    core.add(request)
                    completion = Completion(index, request.request_id, self.tokenizer, p.params)
                    running[request.request_id] = (at, completion)
            while running:
                for token_delta in core.step():
                    if token_delta.request_id not in running:
                        continue
                    at, completion = running[token_delta.request_id]
                    delta = completion.push(token_delta)
                    if delta.finish_reason == "error":
                        raise RequestFaultError(delta.error or "the request failed")
                    if completion.finished:
                        del running[token_delta.request_id]
                        if token_delta.finish_reason is None:
                            core.abort(token_delta.request_id)
                    yield at, delta
        finally:
            for request_id in running:
                core.abort(request_id)


def _as_list(prompts: Prompt | Sequence[Prompt]) -> list[Prompt]:
    if isinstance(prompts, str):
        return [prompts]
    if prompts and all(isinstance(p, int) for p in prompts):
        return [cast("list[int]", list(prompts))]
    return cast("list[Prompt]", list(prompts))


def _as_conversations(messages: Any) -> list[Messages]:
    single = not messages or isinstance(messages[0], dict)
    return [messages] if single else list(messages)


def _one_each(params: SamplingParams | Sequence[SamplingParams] | None, count: int) -> list[SamplingParams]:
    if params is None or isinstance(params, SamplingParams):
        return [params or SamplingParams()] * count
    if len(params) != count:
        raise InvalidRequestError(f"{count} prompts but {len(params)} sampling_params", param="sampling_params")
    return list(params)


def _empty_output(p: PreparedRequest) -> RequestOutput:
    outputs = [CompletionOutput(i, logprobs=None if p.params.logprobs is None else []) for i in range(p.params.n)]
    prompt_logprobs = None if p.params.prompt_logprobs is None else [None]
    return RequestOutput(p.request_id, p.prompt, p.prompt_token_ids, outputs, cast(Any, prompt_logprobs))


def _merge(output: RequestOutput, delta: CompletionDelta) -> None:
    one = output.outputs[delta.index]
    one.text += delta.text
    one.token_ids += delta.token_ids
    if one.logprobs is not None:
        one.logprobs += delta.logprobs
    if output.prompt_logprobs is not None:
        output.prompt_logprobs += delta.prompt_logprobs
    if delta.finish_reason is not None:
        one.finish_reason, one.stop_reason = delta.finish_reason, delta.stop_reason
    output.num_cached_tokens = max(output.num_cached_tokens, delta.num_cached_tokens)


class _PromptBar:
    """A progress bar over prompts, only for long batches; `with` gives the function that advances it."""

    def __init__(self, total: int, wanted: bool) -> None:
        self._bar: Any = None
        if wanted and total >= PROGRESS_FROM:
            from rich.console import Console
            from rich.progress import Progress

            self._bar = Progress(console=Console(stderr=True), transient=True)
            self._task = self._bar.add_task("prompts", total=total)

    def __enter__(self) -> Any:
        if self._bar is None:
            return lambda: None
        self._bar.start()
        return lambda: self._bar.advance(self._task)

    def __exit__(self, *_: object) -> None:
        if self._bar is not None:
            self._bar.stop()
