"""Deltas reach their reader as they come, or joined when a completion has ended."""

from __future__ import annotations

import asyncio

from headrace.core.outputs import TokenDelta, TokenLogprobs
from headrace.engine.arrivals import Arrivals


def deltas(request_id: str) -> list[TokenDelta]:
    scored = [TokenLogprobs(i, -0.5, 1) for i in range(3)]
    return [
        TokenDelta(request_id=request_id, token_ids=[1], logprobs=[scored[0]], num_cached_tokens=16),
        TokenDelta(request_id=request_id, token_ids=[2], logprobs=[scored[1]], prompt_logprobs=[scored[2]]),
        TokenDelta(request_id=request_id, token_ids=[3], finish_reason="stop", stop_reason=3),
    ]


def test_deltas_come_one_by_one_unless_the_whole_is_wanted() -> None:
    async def scenario() -> None:
        arrivals = Arrivals()
        receive = arrivals.receiver(0)
        for delta in deltas("a"):
            receive(delta)
        assert [await arrivals.get() for _ in range(3)] == deltas("a")

    asyncio.run(scenario())


def test_a_whole_completion_is_one_delta_and_tokens_are_told_as_they_come() -> None:
    async def scenario() -> None:
        told: list[tuple[int, int]] = []
        arrivals = Arrivals(whole=True, on_tokens=lambda index, count: told.append((index, count)))
        first, second = arrivals.receiver(0), arrivals.receiver(1)
        for a, b in zip(deltas("a"), deltas("b"), strict=True):
            second(b)
            first(a)
        one, two = await arrivals.get(), await arrivals.get()
        assert (one.request_id, two.request_id) == ("b", "a")
        assert (two.token_ids, two.finish_reason, two.stop_reason) == ([1, 2, 3], "stop", 3)
        assert (len(two.logprobs), len(two.prompt_logprobs), two.num_cached_tokens) == (2, 1, 16)
        assert told == [(1, 1), (0, 1)] * 3

    asyncio.run(scenario())


def test_an_error_ends_a_whole_completion_with_what_came_before() -> None:
    async def scenario() -> None:
        arrivals = Arrivals(whole=True)
        receive = arrivals.receiver(0)
        receive(deltas("a")[0])
        receive(TokenDelta(request_id="a", finish_reason="error", error="gone"))
        end = await arrivals.get()
        assert (end.token_ids, end.finish_reason, end.error) == ([1], "error", "gone")

    asyncio.run(scenario())
