"""EngineClient: what AsyncLLM needs of an engine, wherever it runs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from headrace.core.outputs import TokenDelta
from headrace.core.request import EngineRequest
from headrace.core.stats import EngineInfo, EngineStats

OnDelta = Callable[[TokenDelta], None]


class EngineClient(Protocol):
    """Called from one event loop. Every submitted request ends with exactly one delta that has a finish_reason,
    or, when the engine dies, one with finish_reason "error" and the reason in `error`."""

    @property
    def dead_reason(self) -> str | None:
        """Why the engine cannot serve any more; None while it can."""

    async def start(self) -> EngineInfo:
        """Load the model. Raises HeadraceError (ConfigError, ModelFileError, CapacityError, …)."""

    def submit(self, request: EngineRequest, on_delta: OnDelta) -> None:
        """Queue a request; `on_delta` is called on the event loop. Raises EngineDeadError."""

    def abort(self, request_id: str) -> None:
        """End a request. Its late deltas are dropped; nothing is called back any more."""

    async def stats(self) -> EngineStats:
        """Raises EngineDeadError."""

    async def close(self) -> None:
        """End the engine; waiting requests get an error delta. Idempotent."""
