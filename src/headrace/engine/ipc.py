"""What the server process and the engine process say to each other, and how it is framed.

A frame is a 4-byte little-endian length and that many bytes of msgpack holding one message. Messages are typed
(msgspec tagged unions): bytes that are not one of them raise ProtocolError, and the side that sees it closes the
connection. Never pickle: the worst a peer can do is to be cut off.
"""

from __future__ import annotations

import contextlib
import socket
import struct
import threading
from typing import Generic, TypeVar

import msgspec

from headrace.config.engine import EngineConfig
from headrace.core import errors
from headrace.core.errors import HeadraceError
from headrace.core.outputs import TokenDelta
from headrace.core.request import EngineRequest
from headrace.core.stats import EngineInfo, EngineStats

MAX_FRAME_BYTES = 64 << 20
"""Above every real message: a prompt of ten million ids is about 50 MB."""

_LENGTH = struct.Struct("<I")


class ProtocolError(Exception):
    """The peer sent something that is not a message of the protocol."""


class Configure(msgspec.Struct, frozen=True, tag="configure", forbid_unknown_fields=True):
    """First message to the engine: load this."""

    config: EngineConfig
    log_level: str = "info"


class Add(msgspec.Struct, frozen=True, tag="add", forbid_unknown_fields=True):
    """Run a request; its deltas follow."""

    request: EngineRequest


class Abort(msgspec.Struct, frozen=True, tag="abort", forbid_unknown_fields=True):
    """Forget a request. Deltas already under way may still arrive; unknown ids mean nothing."""

    request_id: str


class StatsQuery(msgspec.Struct, frozen=True, tag="stats_query", forbid_unknown_fields=True):
    """Ask for EngineStats; the answer carries the same number."""

    query_id: int


class Ready(msgspec.Struct, frozen=True, tag="ready", forbid_unknown_fields=True):
    """The model is loaded."""

    info: EngineInfo


class Deltas(msgspec.Struct, frozen=True, tag="deltas", forbid_unknown_fields=True):
    """What one step added to its requests."""

    deltas: list[TokenDelta]


class Stats(msgspec.Struct, frozen=True, tag="stats", forbid_unknown_fields=True):
    """Answer to a StatsQuery."""

    query_id: int
    stats: EngineStats


class Failure(msgspec.Struct, frozen=True, tag="failure", forbid_unknown_fields=True):
    """The engine cannot start or go on; the connection ends after this. `kind` names a HeadraceError, if it was one."""

    kind: str
    message: str
    param: str | None = None
    code: str | None = None


ToEngine = Configure | Add | Abort | StatsQuery
FromEngine = Ready | Deltas | Stats | Failure

_T = TypeVar("_T")
_encoder = msgspec.msgpack.Encoder()


def encode_frame(message: ToEngine | FromEngine) -> bytes:
    """The message as a frame. Raises ProtocolError when it is larger than a frame may be."""
    body = bytearray(_LENGTH.size)
    _encoder.encode_into(message, body, _LENGTH.size)
    num_bytes = len(body) - _LENGTH.size
    if num_bytes > MAX_FRAME_BYTES:
        raise ProtocolError(f"a message of {num_bytes} bytes is larger than a frame may be ({MAX_FRAME_BYTES} bytes)")
    _LENGTH.pack_into(body, 0, num_bytes)
    return bytes(body)


class FrameDecoder(Generic[_T]):
    """Bytes in, messages out, wherever the pieces are cut. Keeps at most one unfinished frame."""

    def __init__(self, decoder: msgspec.msgpack.Decoder[_T]) -> None:
        self._decoder = decoder
        self._pending = bytearray()

    def push(self, data: bytes | memoryview) -> list[_T]:
        """The messages that `data` completes. Raises ProtocolError; the decoder is of no use afterwards."""
        pending = self._pending
        pending += data
        messages: list[_T] = []
        at = 0
        while len(pending) - at >= _LENGTH.size:
            (num_bytes,) = _LENGTH.unpack_from(pending, at)
            if not 0 < num_bytes <= MAX_FRAME_BYTES:
                raise ProtocolError(f"a frame of {num_bytes} bytes was announced; 1 to {MAX_FRAME_BYTES} are allowed")
            end = at + _LENGTH.size + num_bytes
            if end > len(pending):
                break
            try:
                with memoryview(pending) as view, view[at + _LENGTH.size : end] as body:
                    messages.append(self._decoder.decode(body))
            except (msgspec.DecodeError, HeadraceError, ValueError, RecursionError) as error:
                raise ProtocolError(f"not a message of the protocol: {error}") from None
            at = end
        del pending[:at]
        return messages

    @property
    def num_pending_bytes(self) -> int:
        """Bytes of a frame that has begun and not ended: non-zero at the end of a stream means it was cut."""
        return len(self._pending)


def to_engine_decoder() -> FrameDecoder[ToEngine]:
    """A decoder for the engine's side."""
    return FrameDecoder(msgspec.msgpack.Decoder(ToEngine))


def from_engine_decoder() -> FrameDecoder[FromEngine]:
    """A decoder for the server's side."""
    return FrameDecoder(msgspec.msgpack.Decoder(FromEngine))


class BlockingConnection:
    """The engine's end: one thread receives, any thread sends.

    Sending blocks while the other side does not read; its reader never waits for us, so this cannot lock up.
    """

    def __init__(self, sock: socket.socket) -> None:
        sock.setblocking(True)
        self._socket = sock
        self._decoder = to_engine_decoder()
        self._send_lock = threading.Lock()
        self._buffer = memoryview(bytearray(1 << 16))

    def send(self, message: FromEngine) -> None:
        """Raises OSError when the other side is gone."""
        frame = encode_frame(message)
        with self._send_lock:
            self._socket.sendall(frame)

    def receive(self) -> list[ToEngine] | None:
        """The next messages (possibly none yet); None at the end. Raises ProtocolError, OSError."""
        num_bytes = self._socket.recv_into(self._buffer)
        if num_bytes == 0:
            return None
        return self._decoder.push(self._buffer[:num_bytes])

    def close(self) -> None:
        """End both directions; a thread blocked in `receive` returns None."""
        with contextlib.suppress(OSError):  # already gone, which is what was wanted
            self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()


def failure_from(error: BaseException) -> Failure:
    """An exception as a message: its own words if it is ours, its type and words otherwise."""
    if isinstance(error, HeadraceError):
        return Failure(type(error).__name__, error.message, error.param, error.code)
    return Failure(type(error).__name__, f"{type(error).__name__}: {error}")


def error_from(failure: Failure) -> HeadraceError:
    """The exception a Failure stands for: the same HeadraceError, or EngineDeadError for anything else."""
    kind = getattr(errors, failure.kind, None)
    if not (isinstance(kind, type) and issubclass(kind, HeadraceError)):
        return errors.EngineDeadError(failure.message)
    error = kind(failure.message)
    error.param, error.code = failure.param, failure.code or error.code
    return error
