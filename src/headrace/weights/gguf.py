"""A bounds-checked reader for GGUF files, versions 2 and 3, little-endian.

Format: the GGUF specification of the ggml project (docs/gguf.md). Every count, length and offset is checked against the
file before anything is allocated or read.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
import numpy.typing as npt

from headrace.core.errors import ModelFileError, UnsupportedModelError
from headrace.weights.elements import GGML_TYPES, ElementType
from headrace.weights.files import MappedFile, open_model_file

MAGIC = b"GGUF"
DEFAULT_ALIGNMENT = 32
MAX_ALIGNMENT = 1 << 20
MAX_KEYS = 1 << 16
MAX_TENSORS = 1 << 18
MAX_KEY_BYTES = 1 << 16
MAX_NAME_BYTES = 1 << 10
MAX_ARRAY_STRINGS = 1 << 23
MAX_DIMS = 4
MAX_ELEMENTS = 1 << 62

_STRING, _ARRAY = 8, 9
_SCALARS: dict[int, tuple[str, str]] = {
    # type id: (struct format, numpy dtype)
    0: ("<B", "u1"),
    1: ("<b", "i1"),
    2: ("<H", "<u2"),
    3: ("<h", "<i2"),
    4: ("<I", "<u4"),
    5: ("<i", "<i4"),
    6: ("<f", "<f4"),
    7: ("<?", "?"),
    10: ("<Q", "<u8"),
    11: ("<q", "<i8"),
    12: ("<d", "<f8"),
}
_MIN_KEY_RECORD = 8 + 4 + 1  # empty key, type, one-byte value
_MIN_TENSOR_RECORD = 8 + 4 + 8 + 4 + 8  # empty name, one dimension, type, offset


@dataclass(frozen=True, slots=True)
class TensorInfo:
    """Where a tensor lies in its file. `shape` in NumPy order: (rows, columns), last axis contiguous."""

    name: str
    dtype: ElementType
    shape: tuple[int, ...]
    offset: int
    """Bytes from the start of the file."""
    nbytes: int


class GGUFFile:
    """A GGUF file: `metadata` (scalars, str, list[str], or 1-D NumPy arrays) and `tensors` by name.

    Raises ModelFileError naming the key or tensor when the file is corrupt or truncated, UnsupportedModelError for
    versions and tensor types that are not known here.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.file: MappedFile = open_model_file(path)
        cursor = _Cursor(self.file)
        version, num_tensors, num_keys = _read_header(cursor)
        self.version: int = version
        self.metadata: dict[str, Any] = _read_metadata(cursor, num_keys)
        self.alignment: int = _alignment(cursor, self.metadata)
        self.tensors: dict[str, TensorInfo] = _read_tensors(cursor, num_tensors, self.alignment)
        self.header_bytes: int = cursor.position
        self.end_offset: int = max((t.offset + t.nbytes for t in self.tensors.values()), default=cursor.position)
        """Where the last tensor ends; a well-made file has only padding after it."""

    def raw(self, name: str) -> npt.NDArray[np.uint8]:
        """The tensor's bytes [nbytes], uint8, a view on the map."""
        info = self.tensors[name]
        return self.file.view(info.offset, info.nbytes)


class _Cursor:
    """A reading position that never passes the end of the file. `what` names what is being read, for errors."""

    __slots__ = ("data", "path", "position", "size", "what")

    def __init__(self, file: MappedFile) -> None:
        self.path = file.path
        self.size = file.size_bytes
        self.data = memoryview(file.data.data)
        self.position = 0
        self.what = "header"

    def fail(self, message: str) -> NoReturn:
        raise ModelFileError(f"{self.path}: {self.what}: {message}")

    def need(self, nbytes: int) -> int:
        """Claims `nbytes` bytes and returns where they start."""
        start = self.position
        if nbytes > self.size - start:
            self.fail(f"truncated: {nbytes} bytes wanted at offset {start}, the file has {self.size}")
        self.position = start + nbytes
        return start

    def scalar(self, layout: str) -> Any:
        start = self.need(struct.calcsize(layout))
        return struct.unpack_from(layout, self.data, start)[0]

    def string(self, limit_bytes: int) -> str:
        length = self.scalar("<Q")
        if length > limit_bytes:
            self.fail(f"a string of {length} bytes where at most {limit_bytes} can be")
        start = self.need(length)
        try:
            return str(self.data[start : start + length], "utf-8")
        except UnicodeDecodeError as error:
            raise ModelFileError(f"{self.path}: {self.what}: a string at offset {start} is not UTF-8") from error


def _read_header(cursor: _Cursor) -> tuple[int, int, int]:
    start = cursor.need(4)
    magic = bytes(cursor.data[start : start + 4])
    if magic != MAGIC:
        cursor.fail(f"not a GGUF file (it starts with {magic!r})")
    version = cursor.scalar("<I")
    if version & 0xFFFF == 0 and version:
        raise UnsupportedModelError(f"{cursor.path}: a big-endian GGUF file; only little-endian ones are read")
    if version not in (2, 3):
        raise UnsupportedModelError(f"{cursor.path}: GGUF version {version}; versions 2 and 3 are read")
    num_tensors = cursor.scalar("<Q")
    num_keys = cursor.scalar("<Q")
    left = cursor.size - cursor.position
    if num_keys > MAX_KEYS or num_keys * _MIN_KEY_RECORD > left:
        cursor.fail(f"claims {num_keys} metadata keys in a file of {cursor.size} bytes")
    if num_tensors > MAX_TENSORS or num_tensors * _MIN_TENSOR_RECORD > left:
        cursor.fail(f"claims {num_tensors} tensors in a file of {cursor.size} bytes")
    return version, num_tensors, num_keys


def _read_metadata(cursor: _Cursor, num_keys: int) -> dict[str, Any]:
    metadata: dict[str, Any] = {}
    for index in range(num_keys):
        cursor.what = f"metadata key {index + 1} of {num_keys}"
        key = cursor.string(MAX_KEY_BYTES)
        cursor.what = f"metadata key {key!r}"
        if key in metadata:
            cursor.fail("appears twice")
        kind = cursor.scalar("<I")
        if kind == _STRING:
            metadata[key] = cursor.string(cursor.size)
        elif kind == _ARRAY:
            metadata[key] = _read_array(cursor)
        elif kind in _SCALARS:
            metadata[key] = cursor.scalar(_SCALARS[kind][0])
        else:
            cursor.fail(f"unknown value type {kind}")
    return metadata


def _read_array(cursor: _Cursor) -> list[str] | npt.NDArray[Any]:
    kind = cursor.scalar("<I")
    count = cursor.scalar("<Q")
    left = cursor.size - cursor.position
    if kind == _STRING:
        if count > MAX_ARRAY_STRINGS or count * 8 > left:
            cursor.fail(f"claims {count} strings with {left} bytes left")
        return _read_strings(cursor, count)
    if kind == _ARRAY:
        raise UnsupportedModelError(f"{cursor.path}: {cursor.what}: arrays of arrays are not read")
    if kind not in _SCALARS:
        cursor.fail(f"unknown array element type {kind}")
    dtype = np.dtype(_SCALARS[kind][1])
    if count * dtype.itemsize > left:
        cursor.fail(f"claims {count} elements of {dtype.itemsize} bytes with {left} bytes left")
    start = cursor.need(count * dtype.itemsize)
    if kind == 7:  # any non-zero byte is true; a NumPy bool of another value than 0 and 1 would be undefined
        flags: npt.NDArray[np.bool_] = np.frombuffer(cursor.data, dtype=np.uint8, count=count, offset=start) != 0
        return flags
    return np.frombuffer(cursor.data, dtype=dtype, count=count, offset=start).copy()


def _read_strings(cursor: _Cursor, count: int) -> list[str]:
    # Vocabularies hold some hundred thousand strings and are on the path to the first token: one tight loop.
    data, end, position = cursor.data, cursor.size, cursor.position
    unpack = struct.Struct("<Q").unpack_from
    strings: list[str] = []
    try:
        for _ in range(count):
            (length,) = unpack(data, position)
            start = position + 8
            position = start + length
            if position > end:
                cursor.fail(f"string {len(strings)} of {count} has {length} bytes, past the end of the file")
            strings.append(str(data[start:position], "utf-8"))
    except struct.error:
        cursor.fail(f"truncated at string {len(strings)} of {count}")
    except UnicodeDecodeError:
        cursor.fail(f"string {len(strings)} of {count} is not UTF-8")
    cursor.position = position
    return strings


def _alignment(cursor: _Cursor, metadata: dict[str, Any]) -> int:
    alignment = metadata.get("general.alignment", DEFAULT_ALIGNMENT)
    cursor.what = "metadata key 'general.alignment'"
    if type(alignment) is not int or not 1 <= alignment <= MAX_ALIGNMENT or alignment & (alignment - 1):
        cursor.fail(f"must be a power of two up to {MAX_ALIGNMENT}, got {alignment!r}")
    return alignment


def _read_tensors(cursor: _Cursor, num_tensors: int, alignment: int) -> dict[str, TensorInfo]:
    relative: dict[str, TensorInfo] = {}
    for index in range(num_tensors):
        cursor.what = f"tensor {index + 1} of {num_tensors}"
        info = _read_tensor_info(cursor, alignment)
        if info.name in relative:
            cursor.fail("appears twice")
        relative[info.name] = info
    base = -(-cursor.position // alignment) * alignment
    tensors: dict[str, TensorInfo] = {}
    previous: TensorInfo | None = None
    for info in sorted(relative.values(), key=lambda t: t.offset):
        cursor.what = f"tensor {info.name!r}"
        placed = TensorInfo(info.name, info.dtype, info.shape, base + info.offset, info.nbytes)
        if placed.offset + placed.nbytes > cursor.size:
            cursor.fail(
                f"truncated: it lies at bytes {placed.offset} to {placed.offset + placed.nbytes}, "
                f"the file has {cursor.size}"
            )
        if previous is not None and placed.offset < previous.offset + previous.nbytes:
            cursor.fail(f"overlaps tensor {previous.name!r}")
        tensors[info.name] = previous = placed
    return tensors


def _read_tensor_info(cursor: _Cursor, alignment: int) -> TensorInfo:
    name = cursor.string(MAX_NAME_BYTES)
    cursor.what = f"tensor {name!r}"
    num_dims = cursor.scalar("<I")
    if not 1 <= num_dims <= MAX_DIMS:
        cursor.fail(f"has {num_dims} dimensions, 1 to {MAX_DIMS} can be")
    dims = [cursor.scalar("<Q") for _ in range(num_dims)]
    if min(dims) == 0 or prod(dims) > MAX_ELEMENTS:
        cursor.fail(f"has the impossible shape {dims}")
    type_id = cursor.scalar("<I")
    offset = cursor.scalar("<Q")
    dtype = GGML_TYPES.get(type_id)
    if dtype is None:
        raise UnsupportedModelError(f"{cursor.path}: tensor {name!r} has the unknown type id {type_id}")
    shape = tuple(reversed(dims))
    nbytes = dtype.nbytes(shape)
    if nbytes is None:
        cursor.fail(f"rows of {shape[-1]} elements are no multiple of {dtype.label}'s group of {dtype.group}")
    if offset % alignment:
        cursor.fail(f"offset {offset} is not aligned to {alignment} bytes")
    return TensorInfo(name, dtype, shape, offset, nbytes)
