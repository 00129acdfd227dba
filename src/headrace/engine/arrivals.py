"""Arrivals: a request's token deltas on their way from the engine's callback to the task that reads them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from headrace.core.outputs import TokenDelta, TokenLogprobs
from headrace.engine.client import OnDelta

OnTokens = Callable[[int, int], None]
"""(completion index, number of tokens), called when they arrive."""


class Arrivals:
    """A queue of deltas for one reader.

    whole: hold back what a completion gets until it ends and then give one delta, so that the reader wakes once per
    completion and not once per token: with many requests at once the wake-ups cost more than the tokens.
    """

    def __init__(self, *, whole: bool = False, on_tokens: OnTokens | None = None) -> None:
        self._whole, self._on_tokens = whole, on_tokens
        self._queue: asyncio.Queue[TokenDelta] = asyncio.Queue()

    def receiver(self, index: int) -> OnDelta:
        """The callback for completion `index`."""
        put, on_tokens = self._queue.put_nowait, self._on_tokens
        held: list[TokenDelta] = []

        def receive(delta: TokenDelta) -> None:
            if on_tokens is not None and delta.token_ids:
                on_tokens(index, len(delta.token_ids))
            if not self._whole:
                put(delta)
                return
            held.append(delta)
            if delta.finish_reason is not None:
                put(joined(held))

        return receive

    async def get(self) -> TokenDelta:
        """The next delta of any completion."""
        return await self._queue.get()


def joined(deltas: list[TokenDelta]) -> TokenDelta:
    """Successive deltas of one completion as one."""
    if len(deltas) == 1:
        return deltas[0]
    last = deltas[-1]
    token_ids: list[int] = []
    logprobs: list[TokenLogprobs] = []
    prompt_logprobs: list[TokenLogprobs] = []
    for delta in deltas:
        token_ids += delta.token_ids
        logprobs += delta.logprobs
        prompt_logprobs += delta.prompt_logprobs
    return TokenDelta(
        request_id=last.request_id,
        token_ids=token_ids,
        logprobs=logprobs,
        prompt_logprobs=prompt_logprobs,
        finish_reason=last.finish_reason,
        stop_reason=last.stop_reason,
        num_cached_tokens=sum(delta.num_cached_tokens for delta in deltas),
        error=last.error,
    )
