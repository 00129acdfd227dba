"""Generation: one HTTP request's outputs, n for each of its prompts, as one sequence of deltas.

Streaming and whole answers are made from the same deltas. Leaving the iteration early, for whatever reason,
closes the engine's streams and so aborts what still waits or runs there.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Coroutine
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import Any, TypeVar, cast

from starlette.requests import Request

from headrace.core.errors import RequestFaultError
from headrace.core.outputs import FinishReason
from headrace.observe.metrics import RequestTimer
from headrace.server.schemas.common import PromptTokensDetails, Usage
from headrace.server.serving import CompletionDelta, PreparedRequest, Serving

T = TypeVar("T")

_MAX_PENDING_DELTAS = 64


class ClientGoneError(Exception):
    """The client closed the connection; nobody reads an answer."""


@dataclass(slots=True)
class Generation:
    """The running outputs of `prompts`. `usage` is right at every moment."""

    serving: Serving
    prompts: list[PreparedRequest]
    n: int
    arrived_s: float
    """By the metrics' clock."""
    whole: bool = False
    """Nobody reads along: one delta per choice, when it has ended, is all that is wanted."""
    num_output_tokens: int = 0
    num_cached_tokens: int = 0
    finished: set[int] = field(default_factory=set)

    @property
    def num_choices(self) -> int:
        return len(self.prompts) * self.n

    @property
    def num_prompt_tokens(self) -> int:
        return sum(len(prompt.prompt_token_ids) for prompt in self.prompts)

    @property
    def usage(self) -> Usage:
        prompt = self.num_prompt_tokens
        return Usage(
            prompt, self.num_output_tokens, prompt + self.num_output_tokens, PromptTokensDetails(self.num_cached_tokens)
        )

    async def deltas(self) -> AsyncGenerator[tuple[int, CompletionDelta], None]:
        """(choice index, delta), the choices interleaved as they come; each choice finishes exactly once.

        Raises RequestFaultError when the engine gives up on one of them, EngineDeadError when it is gone.
        """
        timers = self._timers()
        outcome: FinishReason = "abort"
        try:
            async with aclosing(self._merged(timers)) as merged:
                async for prompt_index, delta in merged:
                    choice = prompt_index * self.n + delta.index
                    if choice in self.finished:
                        continue
                    if delta.finish_reason in ("error", "abort"):
                        raise RequestFaultError(f"the engine ended the request: {delta.finish_reason}")
                    self.num_output_tokens += len(delta.token_ids)
                    if delta.index == 0:
                        self.num_cached_tokens += delta.num_cached_tokens
                    if not self.whole:
                        timers[choice].tokens(len(delta.token_ids))
                    if delta.finish_reason is not None:
                        self.finished.add(choice)
                        timers[choice].finish(delta.finish_reason, self._prompt_tokens(choice))
                    yield choice, delta
            if len(self.finished) != self.num_choices:
                raise RequestFaultError("the engine ended the request without a finish reason")
        except Exception:
            outcome = "error"
            raise
        finally:
            for choice, timer in enumerate(timers):
                timer.finish(outcome, self._prompt_tokens(choice))

    def _timers(self) -> list[RequestTimer]:
        timers = [self.serving.metrics.request_arrived() for _ in range(self.num_choices)]
        for timer in timers:
            timer.arrived_s = self.arrived_s
        return timers

    def _prompt_tokens(self, choice: int) -> int:
        return len(self.prompts[choice // self.n].prompt_token_ids)

    async def _merged(self, timers: list[RequestTimer]) -> AsyncGenerator[tuple[int, CompletionDelta], None]:
        if len(self.prompts) == 1:
            async with aclosing(self._stream(0, timers)) as deltas:
                async for delta in deltas:
                    yield 0, delta
            return
        arrived: asyncio.Queue[tuple[int, CompletionDelta] | BaseException | None] = asyncio.Queue(_MAX_PENDING_DELTAS)
        pumps = [asyncio.create_task(self._pump(i, timers, arrived)) for i in range(len(self.prompts))]
        try:
            num_open = len(pumps)
            while num_open:
                item = await arrived.get()
                if item is None:
                    num_open -= 1
                elif isinstance(item, BaseException):
                    raise item
                else:
                    yield item
        finally:
            for pump in pumps:
                pump.cancel()
            await asyncio.gather(*pumps, return_exceptions=True)

    async def _pump(
        self, index: int, timers: list[RequestTimer], arrived: asyncio.Queue[tuple[int, CompletionDelta] | Any]
    ) -> None:
        try:
            async with aclosing(self._stream(index, timers)) as deltas:
                async for delta in deltas:
                    await arrived.put((index, delta))
        except Exception as error:
            await arrived.put(error)
        else:
            await arrived.put(None)

    def _stream(self, prompt: int, timers: list[RequestTimer]) -> AsyncGenerator[CompletionDelta, None]:
        def on_tokens(index: int, num_tokens: int) -> None:
            timers[prompt * self.n + index].tokens(num_tokens)

        deltas: AsyncIterator[CompletionDelta] = self.serving.llm.stream(
            self.prompts[prompt], whole=self.whole, on_tokens=on_tokens if self.whole else None
        )
        return cast("AsyncGenerator[CompletionDelta, None]", deltas)


async def unless_gone(request: Request, work: Coroutine[Any, Any, T]) -> T:
    """`work`'s result; cancels it and raises ClientGoneError as soon as the client closes the connection.

    The request's body must have been read to its end.
    """
    task = asyncio.ensure_future(work)
    watcher = asyncio.ensure_future(disconnected(request))
    try:
        await asyncio.wait({task, watcher}, return_when=asyncio.FIRST_COMPLETED)
        if task.done():
            return task.result()
        raise ClientGoneError
    finally:
        for each in (task, watcher):
            each.cancel()
        await asyncio.gather(task, watcher, return_exceptions=True)


async def disconnected(request: Request) -> None:
    """Return when the client has closed the connection."""
    while (await request.receive())["type"] != "http.disconnect":
        pass
