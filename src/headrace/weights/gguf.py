"""A bounds-checked reader for GGUF files, versions 2 and 3, little-endian.

Format: the GGUF specification of the ggml project (docs/gguf.md). Every count, length and offset is checked against the
file before anything is allocated or read.
"""

from __future__ import annotations

import struct
from array import array
from collections.abc import Iterator, Sequence
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn, overload

import msgspec

from headrace import _native
from headrace.core.errors import ModelFileError, UnsupportedModelError
from headrace.weights.elements import GGML_TYPES, ElementType
from headrace.weights.files import MappedFile, open_model_file

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

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
_SCALARS: dict[int, str] = {
    # type id: struct format
    0: "<B",
    1: "<b",
    2: "<H",
    3: "<h",
    4: "<I",
    5: "<i",
    6: "<f",
    7: "<?",
    10: "<Q",
    11: "<q",
    12: "<d",
}
_BOOL = 7
_MIN_KEY_RECORD = 8 + 4 + 1  # empty key, type, one-byte value
_MIN_TENSOR_RECORD = 8 + 4 + 8 + 4 + 8  # empty name, one dimension, type, offset


class TensorInfo(msgspec.Struct, frozen=True):
    """Where a tensor lies in its file. `shape` in NumPy order: (rows, columns), last axis contiguous."""

    name: str
    dtype: ElementType
    shape: tuple[int, ...]
    offset: int
    """Bytes from the start of the file."""
    nbytes: int


class GGUFFile:
    """A GGUF file: `metadata` (scalars, str, StringArray, array.array, list[bool]) and `tensors` by name.

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


class StringArray(Sequence[str]):
    """The strings of a metadata array, made when they are asked for: only a tokenizer needs a vocabulary.

    Their lengths were checked when the file was opened; reading them raises ModelFileError for what is no UTF-8.
    """

    def __init__(self, file: MappedFile, key: str, position: int, count: int) -> None:
        self._file, self._key, self._position, self._count = file, key, position, count

    def tolist(self) -> list[str]:
        """All strings, decoded anew at every call."""
        try:
            return _native.read_strings(self._file.memory, self._position, self._count)
        except UnicodeDecodeError as error:
            raise ModelFileError(f"{self._file.path}: metadata key {self._key!r}: a string is not UTF-8") from error

    def __len__(self) -> int:
        return self._count

    @overload
    def __getitem__(self, index: int) -> str: ...
    @overload
    def __getitem__(self, index: slice) -> list[str]: ...
    def __getitem__(self, index: int | slice) -> str | list[str]:
        return self.tolist()[index]

    def __iter__(self) -> Iterator[str]:
        return iter(self.tolist())


class _Cursor:
    """A reading position that never passes the end of the file. `what` names what is being read, for errors."""

    __slots__ = ("data", "file", "path", "position", "size", "what")

    def __init__(self, file: MappedFile) -> None:
        self.path = file.path
        self.size = file.size_bytes
        self.file = file
        self.data = file.memory
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
            metadata[key] = _read_array(cursor, key)
        elif kind in _SCALARS:
            metadata[key] = cursor.scalar(_SCALARS[kind])
        else:
            cursor.fail(f"unknown value type {kind}")
    return metadata


def _read_array(cursor: _Cursor, key: str) -> StringArray | array[Any] | list[bool]:
    kind = cursor.scalar("<I")
    count = cursor.scalar("<Q")
    left = cursor.size - cursor.position
    if kind == _STRING:
        if count > MAX_ARRAY_STRINGS or count * 8 > left:
            cursor.fail(f"claims {count} strings with {left} bytes left")
        strings = StringArray(cursor.file, key, cursor.position, count)
        _skip_strings(cursor, count)
        return strings
    if kind == _ARRAY:
        raise UnsupportedModelError(f"{cursor.path}: {cursor.what}: arrays of arrays are not read")
    if kind not in _SCALARS:
        cursor.fail(f"unknown array element type {kind}")
    code = _SCALARS[kind][1:]
    num_bytes = struct.calcsize(_SCALARS[kind])
    if count * num_bytes > left:
        cursor.fail(f"claims {count} elements of {num_bytes} bytes with {left} bytes left")
    start = cursor.need(count * num_bytes)
    raw = cursor.data[start : start + count * num_bytes]
    if kind == _BOOL:
        return [byte != 0 for byte in raw]
    values = array(code)
    values.frombytes(raw)
    return values


def _skip_strings(cursor: _Cursor, count: int) -> None:
    end = _native.skip_strings(cursor.data, cursor.position, count)
    if end >= 0:
        cursor.position = end
        return
    for index in range(count):  # again, to say which one it is
        if cursor.size - cursor.position < 8:
            cursor.fail(f"truncated at string {index} of {count}")
        length = cursor.scalar("<Q")
        if length > cursor.size - cursor.position:
            cursor.fail(f"string {index} of {count} has {length} bytes, past the end of the file")
        cursor.position += length


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
