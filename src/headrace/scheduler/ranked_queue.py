"""RankedQueue: requests in the order they are served."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterator
from operator import attrgetter

from headrace.cache.integrity import require
from headrace.scheduler.request_state import RequestState

_rank = attrgetter("rank")


class RankedQueue:
    """Sorted by rank; a preempted request that comes back stands where it stood before."""

    __slots__ = ("_states",)

    def __init__(self) -> None:
        self._states: list[RequestState] = []

    def __len__(self) -> int:
        return len(self._states)

    def __iter__(self) -> Iterator[RequestState]:
        """First served first. Iterate over a copy if the queue changes meanwhile."""
        return iter(self._states)

    @property
    def first(self) -> RequestState:
        return self._states[0]

    @property
    def last(self) -> RequestState:
        return self._states[-1]

    def add(self, state: RequestState) -> None:
        insort(self._states, state, key=_rank)

    def remove(self, state: RequestState) -> None:
        index = bisect_left(self._states, state.rank, key=_rank)
        require(index < len(self) and self._states[index] is state, "a request is not in the queue of its phase")
        del self._states[index]
