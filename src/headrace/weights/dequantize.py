"""The meaning of every weight format: bytes of a model file → float32, equal bit for bit to ggml's.

Source of the block formats: ggml-quants.h; the arithmetic (one float32 product, then one float32 sum) is that of the
`gguf` package's reference.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from headrace.core.errors import UnsupportedModelError
from headrace.weights.elements import LOADABLE, ElementType

Bytes = npt.NDArray[np.uint8]
Floats = npt.NDArray[np.float32]


def dequantize(element_type: ElementType, raw: Bytes, shape: Sequence[int]) -> Floats:
    """raw [nbytes] uint8 of a tensor of `shape` (last axis contiguous) → float32 [*shape].

    Raises UnsupportedModelError for a type without arithmetic here, ValueError when the bytes do not fit the shape.
    """
    nbytes = element_type.nbytes(shape)
    if nbytes is None or raw.size != nbytes:
        raise ValueError(f"{raw.size} bytes do not make shape {tuple(shape)} of {element_type.label}")
    flat = np.ascontiguousarray(raw).reshape(-1)
    if element_type is ElementType.F32:
        values = flat.view("<f4").astype(np.float32)
    elif element_type is ElementType.F16:
        values = flat.view("<f2").astype(np.float32)
    elif element_type is ElementType.BF16:
        values = (flat.view("<u2").astype(np.uint32) << 16).view(np.float32)
    elif element_type in _BLOCKS:
        with np.errstate(invalid="ignore", over="ignore"):  # an infinite scale is the file's, not a fault of ours
            values = _BLOCKS[element_type](flat.reshape(-1, element_type.group_bytes))
    else:
        raise UnsupportedModelError(unsupported_type_message(element_type))
    return values.reshape(tuple(shape))


def unsupported_type_message(element_type: ElementType) -> str:
    known = ", ".join(t.label for t in LOADABLE)
    return f"weights of type {element_type.label} are not supported; supported: {known}"


def split_q4_0(blocks: Bytes) -> tuple[Bytes, npt.NDArray[np.float16]]:
    """Blocks [n, 18] → nibbles [n, 32] in input order, scales f16 [n]; weight = scale * (nibble - 8)."""
    return _nibbles(blocks[:, 2:]), _half(blocks, 0)


def split_q4_1(blocks: Bytes) -> tuple[Bytes, npt.NDArray[np.float16], npt.NDArray[np.float16]]:
    """Blocks [n, 20] → nibbles [n, 32], scales and minima f16 [n]; weight = scale * nibble + minimum."""
    return _nibbles(blocks[:, 4:]), _half(blocks, 0), _half(blocks, 2)


def split_q8_0(blocks: Bytes) -> tuple[npt.NDArray[np.int8], npt.NDArray[np.float16]]:
    """Blocks [n, 34] → values int8 [n, 32], scales f16 [n]; weight = value * scale."""
    return np.ascontiguousarray(blocks[:, 2:]).view(np.int8), _half(blocks, 0)


def _half(blocks: Bytes, offset: int) -> npt.NDArray[np.float16]:
    return np.ascontiguousarray(blocks[:, offset : offset + 2]).view("<f2").reshape(-1)


def _nibbles(packed: Bytes) -> Bytes:
    # Byte j holds input j (low half) and input j + 16 (high half).
    return np.concatenate([packed & 15, packed >> 4], axis=1)


def _q4_0(blocks: Bytes) -> Floats:
    nibbles, scale = split_q4_0(blocks)
    return scale.astype(np.float32)[:, None] * (nibbles.astype(np.float32) - np.float32(8))


def _q4_1(blocks: Bytes) -> Floats:
    nibbles, scale, minimum = split_q4_1(blocks)
    return scale.astype(np.float32)[:, None] * nibbles.astype(np.float32) + minimum.astype(np.float32)[:, None]


def _q8_0(blocks: Bytes) -> Floats:
    values, scale = split_q8_0(blocks)
    return values.astype(np.float32) * scale.astype(np.float32)[:, None]


_BLOCKS = {ElementType.Q4_0: _q4_0, ElementType.Q4_1: _q4_1, ElementType.Q8_0: _q8_0}
