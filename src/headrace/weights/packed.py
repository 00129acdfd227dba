"""The NumPy truth of the packed weight formats in native/include/plan.h; the native packer is tested against it.

A matrix [n, k] is ceil(n / 16) column blocks, one after another. A block holds 16 outputs (lanes) and its groups, or
inputs, in ascending order. Lanes past n are zero.
"""

from __future__ import annotations

from enum import IntEnum
from typing import TypeVar

import numpy as np
import numpy.typing as npt

from headrace.core.errors import UnsupportedModelError
from headrace.weights.dequantize import (
    Bytes,
    Floats,
    split_q4_0,
    split_q4_1,
    split_q8_0,
    unsupported_type_message,
)
from headrace.weights.elements import ElementType

LANES = 16
GROUP = 32
Q4_BYTES = 320
Q8_BYTES = 544
F16_MAX = 65504.0


class PackedFormat(IntEnum):
    """`Format` of native/include/plan.h."""

    Q4 = 0
    Q8 = 1
    F16 = 2
    BF16 = 3
    F32 = 4


PACKED_FORMATS = {
    ElementType.Q4_0: PackedFormat.Q4,
    ElementType.Q4_1: PackedFormat.Q4,
    ElementType.Q8_0: PackedFormat.Q8,
    ElementType.F16: PackedFormat.F16,
    ElementType.BF16: PackedFormat.BF16,
    ElementType.F32: PackedFormat.F32,
}
"""The packed format that holds each storage type without loss."""

_Scalar = TypeVar("_Scalar", bound=np.generic)
_FLOAT_DTYPES = {PackedFormat.F16: "<u2", PackedFormat.BF16: "<u2", PackedFormat.F32: "<u4"}


def packed_nbytes(packed_format: PackedFormat, n: int, k: int) -> int:
    """Bytes of a packed matrix of n outputs and k inputs. ValueError when k is no multiple of the format's group."""
    blocks = -(-n // LANES)
    if packed_format in _FLOAT_DTYPES:
        return blocks * k * LANES * np.dtype(_FLOAT_DTYPES[packed_format]).itemsize
    if k % GROUP:
        raise ValueError(f"{k} inputs are no multiple of the group of {GROUP}")
    return blocks * (k // GROUP) * (Q4_BYTES if packed_format is PackedFormat.Q4 else Q8_BYTES)


def pack(
    source: ElementType, raw: Bytes, n: int, k: int, *, row_order: npt.NDArray[np.int64] | None = None
) -> npt.NDArray[np.uint8]:
    """raw: a tensor [rows, k] as stored; n outputs, output r being row `row_order[r]` (None: row r) → uint8 [nbytes].

    Raises UnsupportedModelError for a type without a packed format, OverflowError for a Q4_0 scale whose minimum
    (-8 * scale) is not representable in f16.
    """
    if source not in PACKED_FORMATS:
        raise UnsupportedModelError(unsupported_type_message(source))
    row_bytes = source.nbytes((k,))
    if row_bytes is None or raw.size % row_bytes or (row_order is None and raw.size != n * row_bytes):
        raise ValueError(f"{raw.size} bytes are not {n} rows of {k} elements of {source.label}")
    rows = np.ascontiguousarray(raw).reshape(-1, row_bytes)
    rows = rows[:n] if row_order is None else rows[row_order]
    packed_format = PACKED_FORMATS[source]
    if packed_format in _FLOAT_DTYPES:
        elements = np.ascontiguousarray(rows).view(_FLOAT_DTYPES[packed_format])  # [n, k]
        lanes = _padded(elements).reshape(-1, LANES, k)
        return np.ascontiguousarray(lanes.transpose(0, 2, 1)).view(np.uint8).reshape(-1)
    blocks = rows.reshape(-1, source.group_bytes)  # [n * groups, group_bytes]
    groups = k // GROUP
    if packed_format is PackedFormat.Q8:
        values, scales = split_q8_0(blocks)
        return _pack_q8(values.reshape(n, groups, GROUP), scales.reshape(n, groups))
    if source is ElementType.Q4_1:
        nibbles, scales, minima = split_q4_1(blocks)
    else:
        nibbles, scales = split_q4_0(blocks)
        if not np.all(np.abs(scales.astype(np.float32)) * 8 <= F16_MAX):  # NaN is refused too
            raise OverflowError("a Q4_0 scale whose minimum is not a finite f16")
        minima = (scales.astype(np.float32) * -8).astype(np.float16)
    return _pack_q4(nibbles.reshape(n, groups, GROUP), scales.reshape(n, groups), minima.reshape(n, groups))


def unpack(packed_format: PackedFormat, packed: Bytes, n: int, k: int) -> Floats:
    """A packed matrix, uint8 [nbytes] → float32 [n, k], in the arithmetic of the source types."""
    if packed.size != packed_nbytes(packed_format, n, k):
        raise ValueError(f"{packed.size} bytes are not a packed {packed_format.name} matrix of {n} by {k}")
    flat = np.ascontiguousarray(packed).reshape(-1)
    if packed_format in _FLOAT_DTYPES:
        lanes = flat.view(_FLOAT_DTYPES[packed_format]).reshape(-1, k, LANES)
        elements = np.ascontiguousarray(lanes.transpose(0, 2, 1)).reshape(-1, k)[:n]
        if packed_format is PackedFormat.F16:
            return elements.view("<f2").astype(np.float32)
        bits = elements if packed_format is PackedFormat.F32 else elements.astype(np.uint32) << 16
        return np.ascontiguousarray(bits).view("<f4")
    if packed_format is PackedFormat.Q8:
        blocks = flat.reshape(-1, k // GROUP, Q8_BYTES)
        stored = blocks[..., :512].reshape(-1, k // GROUP, 8, LANES, 4)
        values = stored.transpose(0, 3, 1, 2, 4).reshape(-1, k // GROUP, GROUP)[:n].astype(np.float32) - 128
        return (values * _lane_values(blocks[..., 512:])[:n, :, None]).reshape(n, k)
    blocks = flat.reshape(-1, k // GROUP, Q4_BYTES)
    stored = blocks[..., :256].reshape(-1, k // GROUP, 4, LANES, 4)
    halves = np.stack([stored & 15, stored >> 4], axis=-2)  # [block, group, j, lane, half, i]
    nibbles = halves.transpose(0, 3, 1, 2, 4, 5).reshape(-1, k // GROUP, GROUP)[:n].astype(np.float32)
    scales, minima = _lane_values(blocks[..., 256:288])[:n], _lane_values(blocks[..., 288:])[:n]
    return (scales[:, :, None] * nibbles + minima[:, :, None]).reshape(n, k)


def _pack_q4(nibbles: Bytes, scales: npt.NDArray[np.float16], minima: npt.NDArray[np.float16]) -> Bytes:
    groups = nibbles.shape[1]
    split = _padded(nibbles).reshape(-1, LANES, groups, 4, 2, 4)  # [block, lane, group, j, half, i]
    stored = split[..., 0, :] | (split[..., 1, :] << 4)  # [block, lane, group, j, i]
    stored = stored.transpose(0, 2, 3, 1, 4).reshape(-1, groups, 256)
    return np.concatenate([stored, _lane_bytes(scales), _lane_bytes(minima)], axis=-1).reshape(-1)


def _pack_q8(values: npt.NDArray[np.int8], scales: npt.NDArray[np.float16]) -> Bytes:
    groups = values.shape[1]
    offset = (values.astype(np.int16) + 128).astype(np.uint8)
    split = _padded(offset).reshape(-1, LANES, groups, 8, 4)  # [block, lane, group, j, i]
    stored = split.transpose(0, 2, 3, 1, 4).reshape(-1, groups, 512)
    return np.concatenate([stored, _lane_bytes(scales)], axis=-1).reshape(-1)


def _padded(rows: npt.NDArray[_Scalar]) -> npt.NDArray[_Scalar]:
    """Zero rows appended up to a multiple of 16."""
    missing = -rows.shape[0] % LANES
    return np.concatenate([rows, np.zeros((missing, *rows.shape[1:]), dtype=rows.dtype)])


def _lane_bytes(values: npt.NDArray[np.float16]) -> Bytes:
    """[n, groups] → the 32 bytes of 16 lanes, uint8 [blocks, groups, 32]."""
    lanes = _padded(values).reshape(-1, LANES, values.shape[1]).transpose(0, 2, 1)
    return np.ascontiguousarray(lanes).view(np.uint8)


def _lane_values(stored: Bytes) -> Floats:
    """The inverse: uint8 [blocks, groups, 32] → float32 [blocks * 16, groups]."""
    lanes = np.ascontiguousarray(stored).view("<f2").astype(np.float32)  # [blocks, groups, 16]
    return np.ascontiguousarray(lanes.transpose(0, 2, 1)).reshape(-1, lanes.shape[1])
