"""Stateless randomness: noise is a function of (seed, sample index, position, token id) and of nothing else.

So a seeded request gives the same tokens alone, in a crowd, after a preemption or when a token is drawn twice.
The hash is SplitMix64's finaliser (Steele, Lea, Flood 2014) over the key, then triple32 (Wellons, "hash-prospector")
over the id; native/kernels/noise.h is the same in C++.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

_MASK_64 = 0xFFFFFFFFFFFFFFFF
_GOLDEN_GAMMA = 0x9E3779B97F4A7C15


def noise_bits(seed: int, sample_index: int, position: int, ids: npt.NDArray[np.integer]) -> npt.NDArray[np.uint32]:
    """32 hash bits for each token id: uint32 [num_ids]."""
    key = _mix64((seed + _GOLDEN_GAMMA) & _MASK_64)
    key = _mix64(key ^ (sample_index << 32 | position))
    low, high = np.uint32(key & 0xFFFFFFFF), np.uint32(key >> 32)
    return _triple32(_triple32(ids.astype(np.uint32) ^ low) ^ high)


def gumbel_noise(seed: int, sample_index: int, position: int, ids: npt.NDArray[np.integer]) -> npt.NDArray[np.float64]:
    """Standard Gumbel noise for each token id: float64 [num_ids].

    argmax(logits + noise) is a draw from softmax(logits) (Gumbel 1954). `position` is the one the drawn token takes.
    The uniform number has 32 bits and is never 0 or 1.
    """
    uniform = (noise_bits(seed, sample_index, position, ids) + 0.5) / 2.0**32
    return np.asarray(-np.log(-np.log(uniform)), np.float64)


def _mix64(x: int) -> int:
    x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9 & _MASK_64
    x = (x ^ (x >> 27)) * 0x94D049BB133111EB & _MASK_64
    return x ^ (x >> 31)


def _triple32(x: npt.NDArray[np.uint32]) -> npt.NDArray[np.uint32]:
    x = (x ^ (x >> np.uint32(17))) * np.uint32(0xED5AD4BB)
    x = (x ^ (x >> np.uint32(11))) * np.uint32(0xAC4C1B51)
    x = (x ^ (x >> np.uint32(15))) * np.uint32(0x31848BAB)
    return x ^ (x >> np.uint32(14))
