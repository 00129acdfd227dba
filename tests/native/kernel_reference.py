"""Short NumPy meanings of packed weights and prepared activations, for the kernel tests.

Layouts: native/include/plan.h and native/kernels/ops/prepare.h; ggml blocks as in ggml-common.h.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from headrace import _native

SOURCES = {"q4_0": 0, "q4_1": 1, "q8_0": 2, "f16": 3, "bf16": 4, "f32": 5}
FORMATS = {"q4": 0, "q8": 1, "f16": 2, "bf16": 3, "f32": 4}
FORMAT_OF_SOURCE = {"q4_0": "q4", "q4_1": "q4", "q8_0": "q8", "f16": "f16", "bf16": "bf16", "f32": "f32"}
ISAS = list(_native.available_isas())


@dataclass(frozen=True)
class Weight:
    """A random matrix: `raw` as in a model file [n, row bytes], `values` what it means in float64 [n, k]."""

    source: str
    raw: np.ndarray
    values: np.ndarray

    @property
    def format(self) -> int:
        return FORMATS[FORMAT_OF_SOURCE[self.source]]


def random_weight(rng: np.random.Generator, source: str, n: int, k: int) -> Weight:
    if source in ("f16", "bf16", "f32"):
        values = rng.standard_normal((n, k)).astype(np.float32)
        if source == "f16":
            halves = values.astype(np.float16)
            return Weight(source, halves.view(np.uint8), halves.astype(np.float64))
        if source == "bf16":
            words = (values.view(np.uint32) >> 16).astype(np.uint16)
            return Weight(
                source, words.view(np.uint8), (words.astype(np.uint32) << 16).view(np.float32).astype(np.float64)
            )
        return Weight(source, values.view(np.uint8), values.astype(np.float64))
    groups = k // 32
    scale = (rng.standard_normal((n, groups)) * 0.1).astype(np.float16)
    d = scale.astype(np.float64)[:, :, None]
    parts = [scale[:, :, None].view(np.uint8)]
    if source == "q8_0":
        q = rng.integers(-128, 128, (n, groups, 32)).astype(np.int8)
        return Weight(source, _rows([*parts, q.view(np.uint8)]), (d * q).reshape(n, k))
    q = rng.integers(0, 16, (n, groups, 32)).astype(np.uint8)
    nibbles = q[:, :, :16] | q[:, :, 16:] << 4
    if source == "q4_0":
        return Weight(source, _rows([*parts, nibbles]), (d * (q.astype(np.float64) - 8)).reshape(n, k))
    minimum = (rng.standard_normal((n, groups)) * 0.3).astype(np.float16)
    values = d * q + minimum.astype(np.float64)[:, :, None]
    return Weight(source, _rows([*parts, minimum[:, :, None].view(np.uint8), nibbles]), values.reshape(n, k))


def _rows(parts: list[np.ndarray]) -> np.ndarray:
    joined = np.ascontiguousarray(np.concatenate(parts, axis=2))
    return joined.reshape(joined.shape[0], -1)


def pack(weight: Weight, row_order: np.ndarray | None = None, num_threads: int = 1) -> np.ndarray:
    n, k = weight.values.shape
    packed = np.full(_native.packed_bytes(weight.format, n, k), 0xAB, np.uint8)
    raw = np.ascontiguousarray(weight.raw)
    args = (raw.ctypes.data, row_order, n, k, packed.ctypes.data)
    assert _native.pack(SOURCES[weight.source], *args, num_threads=num_threads)
    return packed


def pack_pair(gate: Weight, up: Weight) -> np.ndarray:
    """Alternating blocks of 16 outputs of gate and up."""
    n, k = gate.values.shape
    blocks = -(-n // 16)
    packed = np.full(_native.packed_bytes(gate.format, blocks * 32, k), 0xAB, np.uint8)
    for first, weight in enumerate((gate, up)):
        raw = np.ascontiguousarray(weight.raw)
        args = (raw.ctypes.data, None, n, k, packed.ctypes.data, first, 2)
        assert _native.pack(SOURCES[weight.source], *args)
    return packed


def unpack(packed_format: str, packed: np.ndarray, n: int, k: int) -> np.ndarray:
    """float64 [ceil(n / 16) * 16, k], padding lanes included."""
    blocks = -(-n // 16)
    if packed_format in ("f16", "bf16", "f32"):
        if packed_format == "bf16":
            elements = (packed.view(np.uint16).astype(np.uint32) << 16).view(np.float32)
        else:
            elements = packed.view(np.float16 if packed_format == "f16" else np.float32)
        return elements.astype(np.float64).reshape(blocks, k, 16).transpose(0, 2, 1).reshape(blocks * 16, k)
    groups = k // 32
    bytes_ = packed.reshape(blocks, groups, -1)
    if packed_format == "q8":
        q = bytes_[:, :, :512].reshape(blocks, groups, 8, 16, 4).astype(np.float64) - 128
        q = q.transpose(0, 3, 1, 2, 4).reshape(blocks, 16, groups, 32)
        scale = np.ascontiguousarray(bytes_[:, :, 512:]).view(np.float16).astype(np.float64)
        return (q * scale.transpose(0, 2, 1)[..., None]).reshape(blocks * 16, k)
    nibbles = bytes_[:, :, :256].reshape(blocks, groups, 4, 16, 4)
    q = np.stack([nibbles & 15, nibbles >> 4], axis=4).astype(np.float64)  # [block, group, j, lane, half, i]
    q = q.transpose(0, 3, 1, 2, 4, 5).reshape(blocks, 16, groups, 32)
    scale, minimum = (
        np.ascontiguousarray(bytes_[:, :, at : at + 32])
        .view(np.float16)
        .astype(np.float64)
        .transpose(0, 2, 1)[..., None]
        for at in (256, 288)
    )
    return (q * scale + minimum).reshape(blocks * 16, k)


def quantise(x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """int8 [m, groups, 32] and f32 scales [m, groups] of rows x f32 [m, k]."""
    groups = x.reshape(x.shape[0], -1, 32)
    absmax = np.abs(groups).max(axis=2)
    scale = np.where(absmax < 2.0**-100, np.float32(0), absmax / np.float32(127)).astype(np.float32)
    inverse = np.divide(np.float32(1), scale, out=np.zeros_like(scale), where=scale != 0)
    return np.rint(groups * inverse[:, :, None]).astype(np.int8), scale


def as_prepared(x: np.ndarray, packed_format: int) -> np.ndarray:
    """float64 [m, k]: the activations the kernel multiplies."""
    if packed_format > 1:
        return x.astype(np.float64)
    q, scale = quantise(x)
    return (q * scale.astype(np.float64)[:, :, None]).reshape(x.shape)


def same_bits(a: np.ndarray, b: np.ndarray) -> bool:
    return a.shape == b.shape and a.tobytes() == b.tobytes()


def each_isa_agrees(results: Iterator[np.ndarray]) -> np.ndarray:
    """The one result of all ISA levels; fails when two differ in a bit."""
    first, *others = results
    for name, other in zip(ISAS[1:], others, strict=True):
        assert same_bits(first, other), f"{name} differs from {ISAS[0]}"
    return first
