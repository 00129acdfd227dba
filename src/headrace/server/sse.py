"""Server-sent events: a response that writes one event per struct, and stops when the client is gone."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator
from contextlib import aclosing

import msgspec
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from headrace.core.errors import HeadraceError
from headrace.server.errors import error_body, log_fault

_DONE = b"data: [DONE]\n\n"
_COMMENT = b": keep-alive\n\n"


class EventStream(Response):
    """Answers with `events`, each encoded as JSON, then `[DONE]`.

    An error becomes the last event before `[DONE]`. The events' generator is closed when the client disconnects,
    also while it waits for its first item. A comment line goes out after every `keep_alive_s` of silence.
    """

    media_type = "text/event-stream"

    def __init__(self, events: AsyncGenerator[msgspec.Struct, None], *, keep_alive_s: float, request_id: str) -> None:
        super().__init__(headers={"cache-control": "no-cache", "x-accel-buffering": "no"}, media_type=self.media_type)
        del self.headers["content-length"]
        self._events = events
        self._keep_alive_s = keep_alive_s
        self._request_id = request_id
        self._last_sent_s = time.monotonic()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:  # noqa: ARG002
        await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
        writer = asyncio.ensure_future(self._write(send))
        watcher = asyncio.ensure_future(self._watch(receive, send))
        try:
            await asyncio.wait({writer, watcher}, return_when=asyncio.FIRST_COMPLETED)
            if writer.done():
                writer.result()
        finally:
            for task in (writer, watcher):
                task.cancel()
            await asyncio.gather(writer, watcher, return_exceptions=True)

    async def _write(self, send: Send) -> None:
        encode = msgspec.json.Encoder().encode
        try:
            async with aclosing(self._events) as events:
                async for event in events:
                    body = b"data: " + encode(event) + b"\n\n"
                    await send({"type": "http.response.body", "body": body, "more_body": True})
                    self._last_sent_s = time.monotonic()
        except Exception as error:
            if not isinstance(error, HeadraceError):
                log_fault(error, self._request_id)
            body = b"data: " + encode(error_body(error)) + b"\n\n"
            await send({"type": "http.response.body", "body": body, "more_body": True})
        await send({"type": "http.response.body", "body": _DONE, "more_body": False})

    async def _watch(self, receive: Receive, send: Send) -> None:
        """Return when the client is gone; meanwhile keep a silent connection open."""
        gone = asyncio.ensure_future(_disconnected(receive))
        try:
            while not gone.done():
                silent_s = time.monotonic() - self._last_sent_s
                await asyncio.wait({gone}, timeout=max(self._keep_alive_s - silent_s, 0.01))
                if not gone.done() and time.monotonic() - self._last_sent_s >= self._keep_alive_s:
                    self._last_sent_s = time.monotonic()
                    await send({"type": "http.response.body", "body": _COMMENT, "more_body": True})
        finally:
            gone.cancel()


async def _disconnected(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
