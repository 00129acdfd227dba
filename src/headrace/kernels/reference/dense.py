"""Reference faces of embed, linear, rms_norm, silu_mul and add."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

F32 = NDArray[np.float32]
GROUP = 32


def embed(weight: F32, token_ids: NDArray[np.int32], out: F32) -> None:
    """weight [vocab, hidden], token_ids [tokens] → out [tokens, hidden]."""
    out[:] = weight[token_ids]


def rms_norm(x: F32, weight: F32, eps: float) -> F32:
    """x / sqrt(mean(x²) + eps) * weight over the last axis (Zhang & Sennrich 2019). [..., width]."""
    mean = np.mean(np.square(x.astype(np.float64)), axis=-1, keepdims=True)
    return np.asarray(x / np.sqrt(mean + eps) * weight, np.float32)


def quantise_activations(x: F32) -> F32:
    """What the integer path sees of x [rows, K]: int8 per row and group of 32, absmax / 127, nearest even."""
    groups = x.reshape(x.shape[0], -1, GROUP)
    scale = np.abs(groups).max(axis=-1, keepdims=True) / np.float32(127)
    inverse = np.divide(np.float32(1), scale, out=np.zeros_like(scale), where=scale > 0)
    return np.asarray(np.rint(groups * inverse) * scale, np.float32).reshape(x.shape)


def linear(x: F32, weight: F32, *, integer: bool, bias: F32 | None = None) -> F32:
    """x [rows, K] @ weight [N, K].T + bias, in float64. `integer`: the format quantises activations first."""
    seen = quantise_activations(x) if integer else x
    out = seen.astype(np.float64) @ weight.astype(np.float64).T
    return (out if bias is None else out + bias).astype(np.float32)


def silu_mul(gate: F32, up: F32) -> F32:
    """gate / (1 + exp(-gate)) * up."""
    g = gate.astype(np.float64)
    return (g / (1.0 + np.exp(-g)) * up).astype(np.float32)


def split_gate_up(weight: F32) -> tuple[F32, F32]:
    """A packed gate-and-up matrix [2N, K] holds them in alternating blocks of 16 rows: → gate [N, K], up [N, K]."""
    blocks = weight.reshape(-1, 2, 16, weight.shape[1])
    return blocks[:, 0].reshape(-1, weight.shape[1]), blocks[:, 1].reshape(-1, weight.shape[1])
