"""Reference faces of rope, kv_store and attention over paged KV."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

F32 = NDArray[np.float32]
KvMemory = NDArray[np.float32] | NDArray[np.uint16]
KV_NUMPY = {"f32": np.float32, "bf16": np.uint16}
LANES = 16


def to_stored(x: F32, like: KvMemory) -> KvMemory:
    """x as the cache keeps it: as it is, or rounded to nearest even to bfloat16 (a NaN stays one)."""
    if like.dtype == np.float32:
        return x
    bits = np.ascontiguousarray(x).view(np.uint32)
    rounded = bits + np.uint32(0x7FFF) + (bits >> 16 & 1)
    return (np.where(np.isnan(x), bits | 0x400000, rounded) >> 16).astype(np.uint16)


def as_float(stored: KvMemory) -> F32:
    """The exact float32 of stored values."""
    if stored.dtype == np.float32:
        return stored.astype(np.float32, copy=False)
    return (stored.astype(np.uint32) << 16).view(np.float32)


@dataclass(frozen=True, slots=True)
class KvView:
    """The KV memory of one layer of a group.

    memory: f32, or uint16 that holds bfloat16, [num_elements]; strides in elements as in native/include/plan.h
    (KvGroup).
    """

    memory: KvMemory
    block_size: int
    block_stride: int
    layer_stride: int
    head_stride: int
    v_offset: int
    layer: int
    head_dim: int

    def tiles(self, block: int, head: int) -> tuple[KvMemory, KvMemory]:
        """K [block_size / 16, head_dim, 16] and V [block_size, head_dim] of one block and head: views."""
        at = block * self.block_stride + self.layer * self.layer_stride + head * self.head_stride
        size = self.block_size * self.head_dim
        k = self.memory[at : at + size].reshape(self.block_size // LANES, self.head_dim, LANES)
        v = self.memory[at + self.v_offset : at + self.v_offset + size].reshape(self.block_size, self.head_dim)
        return k, v


def rope(x: F32, table: F32, positions: NDArray[np.int32], rotary_dim: int) -> None:
    """Rotate x [tokens, heads, head_dim] in place: halves (i, i + rotary/2) by table[position, i] = (cos, sin)."""
    half = rotary_dim // 2
    cos, sin = (table[positions][:, None, :, i] for i in (0, 1))
    a, b = x[..., :half].copy(), x[..., half:rotary_dim].copy()
    x[..., :half] = a * cos - b * sin
    x[..., half:rotary_dim] = b * cos + a * sin


def kv_store(kv: KvView, table: NDArray[np.int32], position: int, k: F32, v: F32) -> None:
    """Write one token's k, v [kv_heads, head_dim] to its slot."""
    block, offset = int(table[position // kv.block_size]), position % kv.block_size
    for head in range(k.shape[0]):
        k_tile, v_tile = kv.tiles(block, head)
        k_tile[offset // LANES, :, offset % LANES] = to_stored(k[head], k_tile)
        v_tile[offset] = to_stored(v[head], v_tile)


def attention(kv: KvView, table: NDArray[np.int32], position: int, q: F32, num_kv_heads: int, scale: float) -> F32:
    """softmax(q K^T * scale) V over keys 0..position: q [heads, head_dim] → [heads, head_dim]."""
    num_keys = position + 1
    group = q.shape[0] // num_kv_heads
    out = np.empty_like(q)
    for head in range(num_kv_heads):
        tiles = [kv.tiles(int(b), head) for b in table[: -(-num_keys // kv.block_size)]]
        keys = np.concatenate([as_float(k).transpose(0, 2, 1).reshape(kv.block_size, -1) for k, _ in tiles])[:num_keys]
        values = np.concatenate([as_float(v) for _, v in tiles])[:num_keys]
        scores = q[head * group : (head + 1) * group].astype(np.float64) @ keys.T.astype(np.float64) * scale
        weights = np.exp(scores - scores.max(axis=-1, keepdims=True))
        out[head * group : (head + 1) * group] = weights @ values / weights.sum(axis=-1, keepdims=True)
    return out
