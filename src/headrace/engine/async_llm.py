"""AsyncLLM: the engine for asyncio users and for the HTTP server."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

from headrace.config.engine import EngineConfig
from headrace.core.errors import EngineDeadError, InvalidRequestError, RequestFaultError
from headrace.core.params import SamplingParams
from headrace.core.stats import EngineInfo, EngineStats
from headrace.engine.arrivals import Arrivals, OnTokens
from headrace.engine.client import EngineClient
from headrace.engine.completion import Completion, CompletionDelta
from headrace.engine.front import Front, PreparedRequest, Prompt, build_front
from headrace.observe.timeline import Timeline
from headrace.text.chat_template import ChatTemplate
from headrace.text.tokenizer import Tokenizer
from headrace.weights.hub import resolve_model
from headrace.weights.text_source import open_text_source

_WARM_UP_AFTER_S = 0.1
"""A request that is there as soon as the engine is ready comes first."""


class AsyncLLM:
    """Prepares requests, streams their completions, aborts what nobody waits for any more.

    config: engine options, or keywords for them. client: where the engine runs; by default on a thread of this
    process. timeline: of a start that began before. Use as an async context manager, or call `start` and `close`.
    """

    def __init__(
        self,
        config: EngineConfig | None = None,
        *,
        client: EngineClient | None = None,
        timeline: Timeline | None = None,
        **options: Any,
    ) -> None:
        if config is not None and options:
            raise TypeError("give an EngineConfig or keywords, not both")
        self.engine_config = config or EngineConfig.from_arguments(**options)
        if client is None:
            from headrace.engine.in_process import InProcessEngine

            client = InProcessEngine(self.engine_config)
        self._client: EngineClient = client
        self._front: Front | None = None
        self._info: EngineInfo | None = None
        self._warming: asyncio.Task[None] | None = None
        self._timeline = timeline or Timeline()
        self._ids = 0

    async def __aenter__(self) -> AsyncLLM:
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def start(self) -> EngineInfo:
        """Load tokenizer and model, side by side. Raises HeadraceError when the model cannot be served."""
        engine = asyncio.ensure_future(self._client.start())
        try:
            self._front = await asyncio.to_thread(_load_front, self.engine_config)
            self._timeline.end("tokenizer")
            self._info = await engine
            self._timeline.end("waiting for the engine")
        except BaseException:
            engine.cancel()
            await asyncio.gather(engine, return_exceptions=True)
            await self._client.close()
            raise
        self._front.set_limits(self._info)
        self._warming = asyncio.ensure_future(_warm_up(self._front))
        return self._info

    async def close(self) -> None:
        """End the engine. Requests that still run get an error."""
        if self._warming is not None:
            self._warming.cancel()
        await self._client.close()

    @property
    def is_ready(self) -> bool:
        """The model is loaded, has produced a token, and the engine is alive."""
        return self._info is not None and self._client.dead_reason is None

    @property
    def dead_reason(self) -> str | None:
        return self._client.dead_reason

    @property
    def info(self) -> EngineInfo:
        if self._info is None:
            raise EngineDeadError("the engine has not started")
        return self._info

    @property
    def startup_s(self) -> dict[str, dict[str, float]]:
        """Process → phase → seconds; a process's phases follow each other from its exec to readiness."""
        return {"server": dict(self._timeline.phases), "engine": self.info.startup_s}

    @property
    def tokenizer(self) -> Tokenizer:
        return self._ready_front().tokenizer

    @property
    def chat_template(self) -> ChatTemplate | None:
        return self._ready_front().chat_template

    @property
    def max_model_len(self) -> int:
        return self.info.max_model_len

    @property
    def model_name(self) -> str:
        """The first served name, else the model option."""
        names = self.engine_config.served_model_name
        return names[0] if names else self.engine_config.model

    def new_request_id(self) -> str:
        self._ids += 1
        return f"req-{self._ids}"

    def prepare(
        self,
        prompt: Prompt,
        params: SamplingParams | None = None,
        *,
        request_id: str | None = None,
        priority: int = 0,
        cache_salt: str | None = None,
        add_special_tokens: bool = True,
    ) -> PreparedRequest:
        """Tokenise and validate. Raises InvalidRequestError, ContextLengthError or EngineDeadError."""
        if self._client.dead_reason is not None:
            raise EngineDeadError(self._client.dead_reason)
        return self._ready_front().prepare(
            prompt,
            params or SamplingParams(),
            request_id=request_id or self.new_request_id(),
            priority=priority,
            cache_salt=cache_salt,
            add_special_tokens=add_special_tokens,
        )

    def render_chat(self, messages: list[dict[str, Any]], **options: Any) -> str:
        """The prompt text of a conversation (tools=, add_generation_prompt=, …)."""
        return self._ready_front().render_chat(messages, **options)

    async def stream(
        self, prepared: PreparedRequest, *, whole: bool = False, on_tokens: OnTokens | None = None
    ) -> AsyncIterator[CompletionDelta]:
        """Deltas of all n completions as they come; each index ends with one finish_reason.

        whole: one delta per completion, when it has ended; much cheaper when nobody reads along. Stop strings need
        the text at once, so with them deltas come as usual. on_tokens: told of tokens as they arrive in any case.

        Closing the iterator, or cancelling the task that reads it, aborts what is left. Raises EngineDeadError when
        the engine dies and RequestFaultError when this request failed inside it.
        """
        front = self._ready_front()
        arrivals = Arrivals(whole=whole and not prepared.params.stop, on_tokens=on_tokens)
        open_: dict[str, Completion] = {}
        try:
            for index, request in enumerate(prepared.requests):
                open_[request.request_id] = Completion(index, request.request_id, front.tokenizer, prepared.params)
                self._client.submit(request, arrivals.receiver(index))
            while open_:
                delta = await arrivals.get()
                completion = open_.get(delta.request_id)
                if completion is None:
                    continue
                out = completion.push(delta)
                if out.finish_reason == "error":
                    raise self._fault(out)
                if completion.finished:
                    del open_[delta.request_id]
                    if delta.finish_reason is None:
                        self._client.abort(delta.request_id)
                yield out
        finally:
            for request_id in open_:
                self._client.abort(request_id)

    async def stats(self) -> EngineStats:
        """Gauges, counters and the memory table. Raises EngineDeadError."""
        return await self._client.stats()

    def _ready_front(self) -> Front:
        if self._front is None:
            raise EngineDeadError("the engine has not started")
        return self._front

    def _fault(self, out: CompletionDelta) -> EngineDeadError | InvalidRequestError | RequestFaultError:
        reason = out.error or "the request failed"
        return EngineDeadError(reason) if self._client.dead_reason is not None else RequestFaultError(reason)


async def _warm_up(front: Front) -> None:
    await asyncio.sleep(_WARM_UP_AFTER_S)
    await asyncio.to_thread(front.warm_up)


def _load_front(config: EngineConfig) -> Front:
    return build_front(config, open_text_source(resolve_model(config.model, config.revision)))
