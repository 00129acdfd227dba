"""Reference faces of rope, kv_store and attention over paged KV."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

F32 = NDArray[np.float32]
LANES = 16


@dataclass(frozen=True, slots=True)
class KvView:
    """The KV memory of one layer of a group.

    memory: f32 [num_elements]; strides in elements as in native/include/plan.h (KvGroup).
    """

    memory: F32
    block_size: int
    block_stride: int
    layer_stride: int
    head_stride: int
    v_offset: int
    layer: int
    head_dim: int

    def tiles(self, block: int, head: int) -> tuple[F32, F32]:
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
        k_tile[offset // LANES, :, offset % LANES] = k[head]
        v_tile[offset] = v[head]


def attention(kv: KvView, table: NDArray[np.int32], position: int, q: F32, num_kv_heads: int, scale: float) -> F32:
    """softmax(q K^T * scale) V over keys 0..position: q [heads, head_dim] → [heads, head_dim]."""
    num_keys = position + 1
    group = q.shape[0] // num_kv_heads
    out = np.empty_like(q)
    for head in range(num_kv_heads):
        tiles = [kv.tiles(int(b), head) for b in table[: -(-num_keys // kv.block_size)]]
        keys = np.concatenate([k.transpose(0, 2, 1).reshape(kv.block_size, -1) for k, _ in tiles])[:num_keys]
        values = np.concatenate([v for _, v in tiles])[:num_keys]
        scores = q[head * group : (head + 1) * group].astype(np.float64) @ keys.T.astype(np.float64) * scale
        weights = np.exp(scores - scores.max(axis=-1, keepdims=True))
        out[head * group : (head + 1) * group] = weights @ values / weights.sum(axis=-1, keepdims=True)
    return out
