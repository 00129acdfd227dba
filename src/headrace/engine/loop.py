"""The two loops over one scheduler and one runner. Both give every request the same tokens; tests hold them to it."""

from __future__ import annotations

from collections import deque
from typing import Protocol

from headrace.core.outputs import TokenDelta
from headrace.core.schedule import Schedule
from headrace.runner.model_runner import ModelRunner
from headrace.scheduler.scheduler import Scheduler


class Loop(Protocol):
    """One step at a time, until there is no work."""

    @property
    def has_work(self) -> bool:
        """Requests that are not finished, or steps whose results have not been taken in."""

    def step(self) -> list[TokenDelta]:
        """Go on by one step: what it adds to each request, possibly nothing."""


class PlainLoop:
    """schedule → run → update. The truth and the debug mode: nothing runs while Python thinks."""

    def __init__(self, scheduler: Scheduler, runner: ModelRunner) -> None:
        self._scheduler, self._runner = scheduler, runner

    @property
    def has_work(self) -> bool:
        return self._scheduler.has_work

    def step(self) -> list[TokenDelta]:
        schedule = self._scheduler.schedule()
        if not schedule.entries:
            return []
        return self._scheduler.update(schedule, self._runner.execute(schedule))


class OverlappedLoop:
    """While one step computes, the next is scheduled and queued behind it, and the last one's tokens go out.

    A request that turns out to have ended was scheduled once too often: its late token is computed and dropped.
    """

    def __init__(self, scheduler: Scheduler, runner: ModelRunner) -> None:
        self._scheduler, self._runner = scheduler, runner
        self._in_flight: deque[Schedule] = deque()

    @property
    def has_work(self) -> bool:
        return bool(self._in_flight) or self._scheduler.has_work

    def step(self) -> list[TokenDelta]:
        schedule = self._scheduler.schedule()
        if schedule.entries:
            self._runner.submit(schedule)
            self._in_flight.append(schedule)
            if len(self._in_flight) == 1:
                return []  # nothing else is running: queue one more before waiting
        if not self._in_flight:
            return []
        oldest = self._in_flight.popleft()
        return self._scheduler.update(oldest, self._runner.collect(oldest))
