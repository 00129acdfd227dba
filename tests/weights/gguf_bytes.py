"""GGUF files written field by field, so that every field can lie."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass, field

U8, I8, U16, I16, U32, I32, F32, BOOL, STRING, ARRAY, U64, I64, F64 = range(13)
SCALARS = {U8: "<B", I8: "<b", U16: "<H", I16: "<h", U32: "<I", I32: "<i", F32: "<f", BOOL: "<B", U64: "<Q", I64: "<q"}


def text(value: str | bytes, length: int | None = None) -> bytes:
    raw = value.encode() if isinstance(value, str) else value
    return struct.pack("<Q", len(raw) if length is None else length) + raw


def key(name: str, kind: int, value: object) -> bytes:
    """A metadata record with a scalar, a string, or raw bytes as they are."""
    if isinstance(value, bytes):
        body = value
    elif kind == STRING:
        body = text(str(value))
    else:
        body = struct.pack(SCALARS[kind], value)
    return text(name) + struct.pack("<I", kind) + body


def array(kind: int, count: int, body: bytes) -> bytes:
    return struct.pack("<IQ", kind, count) + body


@dataclass
class Tensor:
    name: str
    dims: Sequence[int]
    type_id: int = 0
    offset: int = 0

    def record(self) -> bytes:
        dims = b"".join(struct.pack("<Q", d) for d in self.dims)
        return (
            text(self.name) + struct.pack("<I", len(self.dims)) + dims + struct.pack("<IQ", self.type_id, self.offset)
        )


@dataclass
class File:
    keys: list[bytes] = field(default_factory=list)
    tensors: list[Tensor] = field(default_factory=list)
    data: bytes = b""
    magic: bytes = b"GGUF"
    version: int = 3
    num_tensors: int | None = None
    num_keys: int | None = None
    alignment: int = 32

    def build(self) -> bytes:
        num_tensors = len(self.tensors) if self.num_tensors is None else self.num_tensors
        num_keys = len(self.keys) if self.num_keys is None else self.num_keys
        head = self.magic + struct.pack("<IQQ", self.version, num_tensors, num_keys)
        head += b"".join(self.keys) + b"".join(t.record() for t in self.tensors)
        return head + b"\0" * (-len(head) % self.alignment) + self.data
