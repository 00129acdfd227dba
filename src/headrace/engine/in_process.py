"""InProcessEngine: an EngineCore on its own thread, for AsyncLLM without a child process."""

from __future__ import annotations

import asyncio
import logging
import queue
import threading
from collections.abc import Callable
from typing import Any

from headrace.config.engine import EngineConfig
from headrace.core.errors import EngineDeadError, HeadraceError
from headrace.core.outputs import TokenDelta
from headrace.core.request import EngineRequest
from headrace.core.stats import EngineInfo, EngineStats
from headrace.engine.client import OnDelta
from headrace.engine.core import EngineCore

log = logging.getLogger(__name__)

_Command = Callable[[EngineCore], None]


class InProcessEngine:
    """EngineClient whose core runs on a thread of this process. Commands reach it through a queue."""

    def __init__(self, config: EngineConfig, core_factory: Callable[[EngineConfig], EngineCore] = EngineCore) -> None:
        self._config, self._core_factory = config, core_factory
        self._commands: queue.SimpleQueue[_Command | None] = queue.SimpleQueue()
        self._listeners: dict[str, OnDelta] = {}
        self._thread: threading.Thread | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._dead_reason: str | None = None

    @property
    def dead_reason(self) -> str | None:
        return self._dead_reason

    async def start(self) -> EngineInfo:
        self._loop = asyncio.get_running_loop()
        ready: asyncio.Future[EngineInfo] = self._loop.create_future()
        self._thread = threading.Thread(target=self._run, args=(ready,), name="headrace-engine", daemon=True)
        self._thread.start()
        return await ready

    def submit(self, request: EngineRequest, on_delta: OnDelta) -> None:
        if self._dead_reason is not None:
            raise EngineDeadError(self._dead_reason)
        self._listeners[request.request_id] = on_delta

        def add(core: EngineCore) -> None:
            try:
                core.add(request)
            except HeadraceError as fault:
                self._call(
                    self._deliver,
                    [TokenDelta(request_id=request.request_id, finish_reason="error", error=fault.message)],
                )

        self._commands.put(add)

    def abort(self, request_id: str) -> None:
        if self._listeners.pop(request_id, None) is not None:
            self._commands.put(lambda core: core.abort(request_id))

    async def stats(self) -> EngineStats:
        if self._dead_reason is not None:
            raise EngineDeadError(self._dead_reason)
        loop = asyncio.get_running_loop()
        answer: asyncio.Future[EngineStats] = loop.create_future()
        self._commands.put(lambda core: self._call(_resolve, answer, core.stats()))
        return await answer

    async def close(self) -> None:
        if self._thread is not None and self._thread.is_alive():
            self._commands.put(None)
            await asyncio.to_thread(self._thread.join)
        self._die("the engine was closed")

    def _run(self, ready: asyncio.Future[EngineInfo]) -> None:
        try:
            core = self._core_factory(self._config)
        except BaseException as fault:
            self._dead_reason = str(fault)
            self._call(_reject, ready, fault)
            return
        self._call(_resolve, ready, core.info)
        reason = "the engine was closed"
        try:
            self._serve(core)
        except Exception as fault:
            log.exception("the engine loop failed")
            reason = f"the engine failed: {fault}"
        finally:
            core.close()
            self._call(self._die, reason)

    def _serve(self, core: EngineCore) -> None:
        """Commands first, then a step; sleep only when there is nothing to run."""
        while True:
            while not core.has_work or not self._commands.empty():
                command = self._commands.get()
                if command is None:
                    return
                command(core)
            deltas = core.step()
            if deltas:
                self._call(self._deliver, deltas)

    def _call(self, function: Callable[..., None], *arguments: Any) -> None:
        """Run `function` on the event loop; an event loop that is gone takes its listeners with it."""
        if self._loop is not None and not self._loop.is_closed():
            self._loop.call_soon_threadsafe(function, *arguments)

    def _deliver(self, deltas: list[TokenDelta]) -> None:
        for delta in deltas:
            if delta.finish_reason is None:
                listener = self._listeners.get(delta.request_id)
            else:
                listener = self._listeners.pop(delta.request_id, None)
            if listener is not None:
                listener(delta)

    def _die(self, reason: str) -> None:
        self._dead_reason = self._dead_reason or reason
        waiting, self._listeners = self._listeners, {}
        for request_id, listener in waiting.items():
            listener(TokenDelta(request_id=request_id, finish_reason="error", error=self._dead_reason))


def _resolve(future: asyncio.Future[Any], value: Any) -> None:
    if not future.done():
        future.set_result(value)


def _reject(future: asyncio.Future[Any], fault: BaseException) -> None:
    if not future.done():
        future.set_exception(fault)
