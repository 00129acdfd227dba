"""RemoteEngine: talk to the engine process from asyncio, notice its end, leave nothing behind."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import time

from headrace.core.errors import EngineDeadError, HeadraceError, InvalidRequestError
from headrace.core.outputs import TokenDelta
from headrace.core.request import EngineRequest
from headrace.core.stats import EngineInfo, EngineStats
from headrace.engine import ipc
from headrace.engine.client import OnDelta
from headrace.engine.process.child import EXIT_WAIT_S, EngineProcess
from headrace.observe import logs

_POLL_S = 0.01

_log = logs.logger("engine")


class RemoteEngine:
    """EngineClient for an EngineProcess, for use from one asyncio loop.

    When the engine dies, `dead_reason` is set first and then every waiting request gets its last delta.
    """

    def __init__(self, process: EngineProcess) -> None:
        self._process = process
        self._transport: asyncio.Transport | None = None
        self._waiting: dict[str, OnDelta] = {}
        self._queries: dict[int, asyncio.Future[EngineStats]] = {}
        self._query_ids = itertools.count(1)
        self._ready: asyncio.Future[EngineInfo] | None = None
        self._ended: asyncio.Task[None] | None = None
        self._failure: HeadraceError | None = None
        self._closing = False
        self.dead_reason: str | None = None

    @property
    def is_ready(self) -> bool:
        """The model is loaded and the engine is alive."""
        return self._ready is not None and self._ready.done() and self.dead_reason is None

    async def start(self) -> EngineInfo:
        """Wait until the model is loaded. Raises what stopped the engine: ConfigError, CapacityError, …"""
        loop = asyncio.get_running_loop()
        self._ready = loop.create_future()
        self._transport, _ = await loop.create_unix_connection(lambda: _Protocol(self), sock=self._process.socket)
        try:
            return await self._ready
        except BaseException:
            await self.close()
            raise

    def submit(self, request: EngineRequest, on_delta: OnDelta) -> None:
        """Run a request; `on_delta` is called on the loop.

        Raises EngineDeadError; InvalidRequestError when the id is taken.
        """
        transport = self._alive()
        if request.request_id in self._waiting:
            raise InvalidRequestError(
                f"a request with id {request.request_id!r} is already running", param="request_id"
            )
        frame = ipc.encode_frame(ipc.Add(request))
        self._waiting[request.request_id] = on_delta
        transport.write(frame)

    def abort(self, request_id: str) -> None:
        """Stop a request. No delta of it is delivered afterwards; unknown or finished ids are ignored."""
        if self._waiting.pop(request_id, None) is not None and self.dead_reason is None:
            self._alive().write(ipc.encode_frame(ipc.Abort(request_id)))

    async def stats(self) -> EngineStats:
        """Raises EngineDeadError."""
        transport = self._alive()
        query_id = next(self._query_ids)
        future: asyncio.Future[EngineStats] = asyncio.get_running_loop().create_future()
        self._queries[query_id] = future
        try:
            transport.write(ipc.encode_frame(ipc.StatsQuery(query_id)))
            return await future
        finally:
            self._queries.pop(query_id, None)

    async def close(self) -> None:
        """End the engine; requests still waiting end with an error. May be called again."""
        self._closing = True
        if self._transport is not None:
            self._transport.abort()  # not close(): that would first wait for a stuck child to read
            if self._ended is None:
                self._end("the engine was closed")
        else:
            self._process.socket.close()
            self._ended = self._ended or asyncio.ensure_future(self._reap())
        if self._ended is not None:
            await asyncio.shield(self._ended)

    def _alive(self) -> asyncio.Transport:
        if self.dead_reason is not None:
            raise EngineDeadError(self.dead_reason)
        if self._transport is None:
            raise EngineDeadError("the engine has not been started")
        return self._transport

    def receive(self, message: ipc.FromEngine) -> None:
        """One message of the engine's, on the loop."""
        if isinstance(message, ipc.Deltas):
            for delta in message.deltas:
                self._deliver(delta)
        elif isinstance(message, ipc.Stats):
            query = self._queries.get(message.query_id)
            if query is not None and not query.done():
                query.set_result(message.stats)
        elif isinstance(message, ipc.Ready):
            if self._ready is not None and not self._ready.done():
                self._ready.set_result(message.info)
        else:
            self._failure = ipc.error_from(message)

    def _deliver(self, delta: TokenDelta) -> None:
        finished = delta.finish_reason is not None
        on_delta = self._waiting.pop(delta.request_id, None) if finished else self._waiting.get(delta.request_id)
        if on_delta is None:
            return  # aborted while this was under way
        try:
            on_delta(delta)
        except Exception:
            _log.exception("a request's receiver failed; aborting the request", request_id=delta.request_id)
            self.abort(delta.request_id)

    def connection_ended(self, fault: str | None) -> None:
        """The socket has ended, or `fault` makes it unusable."""
        if self._ended is None:
            self._ended = asyncio.ensure_future(self._bury(fault))

    async def _bury(self, fault: str | None) -> None:
        if fault is not None:
            _log.error("closing the connection to the engine", reason=fault)
            self._process.kill()
        await self._reap()
        if fault is None:
            fault = self._failure.message if self._failure is not None else self._process.exit_reason()
        if not self._closing and self._failure is None:
            _log.error("the engine is gone", reason=fault)
        self._tell_everyone(fault)

    def _end(self, reason: str) -> None:
        self._tell_everyone(reason)
        self._ended = asyncio.ensure_future(self._reap())

    def _tell_everyone(self, reason: str) -> None:
        self.dead_reason = reason
        if self._ready is not None and not self._ready.done():
            self._ready.set_exception(self._failure or EngineDeadError(reason))
        for query in self._queries.values():
            if not query.done():
                query.set_exception(EngineDeadError(reason))
        waiting, self._waiting = self._waiting, {}
        for request_id, on_delta in waiting.items():
            with contextlib.suppress(Exception):  # one receiver's fault must not keep the others waiting
                on_delta(TokenDelta(request_id=request_id, finish_reason="error", error=reason))

    async def _reap(self) -> None:
        """Wait for the child's end, at most so long; afterwards it is gone and no zombie."""
        deadline_s = time.monotonic() + EXIT_WAIT_S
        while self._process.exit_code() is None:
            if time.monotonic() > deadline_s:
                _log.warning("the engine process did not end by itself; killing it", pid=self._process.pid)
                self._process.kill()
                return
            await asyncio.sleep(_POLL_S)


class _Protocol(asyncio.Protocol):
    """Bytes of the socket → messages for the client."""

    def __init__(self, client: RemoteEngine) -> None:
        self._client = client
        self._decoder = ipc.from_engine_decoder()
        self._transport: asyncio.Transport | None = None
        self._fault: str | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        if isinstance(transport, asyncio.Transport):
            self._transport = transport

    def data_received(self, data: bytes) -> None:
        try:
            messages = self._decoder.push(data)
        except ipc.ProtocolError as error:
            self._fault = f"the engine process sent something that is not the protocol: {error}"
            if self._transport is not None:
                self._transport.abort()
            return
        for message in messages:
            self._client.receive(message)

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002
        self._client.connection_ended(self._fault)
