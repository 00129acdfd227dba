"""uvicorn, set up for this server: HTTP/1.1 by h11, our signals, our error bodies."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator

import h11
import msgspec
import uvicorn
from starlette.types import ASGIApp
from uvicorn.protocols.http.h11_impl import STATUS_PHRASES, H11Protocol

from headrace.server.errors import ErrorBody, ErrorDetail
from headrace.server.limits import DEFAULT_LIMITS


class Server(uvicorn.Server):
    """Leaves signals to its caller: uvicorn would raise them again after shutdown, before the engine is closed."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Capture none."""
        yield


LINGER_S = 1.0
LINGER_BYTES = 16 << 20


class Protocol(H11Protocol):
    """Answers what is no HTTP, or has too long headers (431), with an error body like every other.

    Closing a socket that still has unread input resets the connection, and the reset can overtake the answer; so the
    rest of a refused request is read and dropped, for a bounded time and amount, before the socket closes.
    """

    _left_to_drop = 0

    def data_received(self, data: bytes) -> None:
        """Bytes for the parser, or more of a request that was refused."""
        if not self._left_to_drop:
            super().data_received(data)
        elif len(data) >= self._left_to_drop:
            self.transport.close()
        else:
            self._left_to_drop -= len(data)

    def send_400_response(self, msg: str) -> None:
        """Called while the parser's exception is handled; it says which status fits."""
        error = sys.exception()
        status = error.error_status_hint if isinstance(error, h11.RemoteProtocolError) else 400
        if status == 431:
            msg = f"the request's headers are longer than {DEFAULT_LIMITS.max_header_bytes} bytes"
        body = msgspec.json.encode(ErrorBody(ErrorDetail(msg, "invalid_request_error", None, "invalid_http")))
        headers = [
            (b"content-type", b"application/json"),
            (b"content-length", str(len(body)).encode()),
            (b"connection", b"close"),
        ]
        events: list[h11.Event] = [
            h11.Response(status_code=status, headers=headers, reason=STATUS_PHRASES[status]),
            h11.Data(data=body),
            h11.EndOfMessage(),
        ]
        for event in events:
            self.transport.write(self.conn.send(event) or b"")
        if self.transport.can_write_eof():
            self.transport.write_eof()
        self._left_to_drop = LINGER_BYTES
        self.loop.call_later(LINGER_S, self.transport.close)


def make_server(app: ASGIApp, root_path: str, shutdown_timeout_s: int) -> Server:
    """A server for `app`; running requests get `shutdown_timeout_s` to finish once `should_exit` is set."""
    return Server(
        uvicorn.Config(
            app,
            loop="asyncio",
            http=Protocol,
            ws="none",
            lifespan="off",
            log_config=None,
            access_log=False,
            server_header=False,
            root_path=root_path,
            h11_max_incomplete_event_size=DEFAULT_LIMITS.max_header_bytes,
            timeout_graceful_shutdown=shutdown_timeout_s,
        )
    )
