"""Rotary position embedding: which scaling a model asks for, and its inverse frequencies."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

from headrace.config.model_fields import Fields
from headrace.core.errors import ModelFileError

MAX_POSITIONS = 1 << 27


@dataclass(frozen=True, slots=True)
class RopeScaling:
    """How the rotary frequencies are stretched beyond the context of pretraining.

    linear: all frequencies divided by `factor`. llama3: by wavelength (Llama 3.1). yarn: YaRN (arXiv:2309.00071).
    factors: each frequency divided by its own entry of `factors` [head_dim / 2] (GGUF's `rope_freqs.weight`).
    """

    kind: Literal["linear", "llama3", "yarn", "factors"]
    factor: float = 1.0
    original_max_position: int = 0
    low_freq_factor: float = 1.0
    high_freq_factor: float = 4.0
    beta_fast: float = 32.0
    beta_slow: float = 1.0
    truncate: bool = True
    attention_factor: float = 1.0
    """cos and sin are multiplied by it."""
    factors: tuple[float, ...] = ()


def frequencies(dim: int, theta: float, scaling: RopeScaling | None) -> list[float]:
    """Inverse frequencies [dim / 2] in double precision, scaling included (radians per position)."""
    plain = [theta ** (-2.0 * i / dim) for i in range(dim // 2)]
    if scaling is None:
        return plain
    if scaling.kind == "linear":
        return [f / scaling.factor for f in plain]
    if scaling.kind == "factors":
        return [f / s for f, s in zip(plain, scaling.factors, strict=True)]
    if scaling.kind == "llama3":
        return [_llama3(f, scaling) for f in plain]
    return _yarn(plain, dim, theta, scaling)


def hf_rope_scaling(rope: Fields, positions: int) -> RopeScaling | None:
    """From config.json's `rope_parameters` or `rope_scaling`; positions: max_position_embeddings."""
    kind = rope.text("rope_type", "") or rope.text("type", "default")
    if rope.number("partial_rotary_factor", 0.0, 1.0, 1.0) != 1.0:
        raise rope.unsupported("partial_rotary_factor", "rope over a part of the head is not computed")
    if kind == "default":
        return None
    if kind not in ("linear", "llama3", "yarn"):
        raise rope.unsupported("rope_type", f"rope scaling {kind!r}; known: linear, llama3, yarn")
    original = rope.integer("original_max_position_embeddings", 1, MAX_POSITIONS, positions)
    default_factor = positions / original if kind == "yarn" else None
    factor = rope.number("factor", 1e-3, 1e6, default_factor)
    if kind == "linear":
        return RopeScaling("linear", factor)
    if kind == "llama3":
        low = rope.number("low_freq_factor", 1e-6, 1e6)
        high = rope.number("high_freq_factor", 1e-6, 1e6)
        if high <= low:
            raise ModelFileError(f"{rope.where}: high_freq_factor {high} must be greater than low_freq_factor {low}")
        return RopeScaling("llama3", factor, original, low, high)
    scale = rope.number("mscale", 0.0, 1e3, 0.0)
    scale_all = rope.number("mscale_all_dim", 0.0, 1e3, 0.0)
    inferred = _mscale(factor, scale) / _mscale(factor, scale_all) if scale and scale_all else _mscale(factor, 1.0)
    return RopeScaling(
        "yarn",
        factor,
        original,
        beta_fast=rope.number("beta_fast", 1e-6, 1e6, 32.0),
        beta_slow=rope.number("beta_slow", 1e-6, 1e6, 1.0),
        truncate=rope.boolean("truncate", True),
        attention_factor=rope.number("attention_factor", 1e-6, 1e6, inferred),
    )


def gguf_rope_scaling(f: Fields, rope_factors: tuple[float, ...] | None) -> RopeScaling | None:
    """From GGUF metadata (keys below the architecture's prefix) and the values of `rope_freqs.weight`."""
    kind = f.text("rope.scaling.type", "none")
    factor = f.number("rope.scaling.factor", 1e-3, 1e6, f.number("rope.scale_linear", 1e-3, 1e6, 1.0))
    if kind == "none" and "rope.scale_linear" in f:
        kind = "linear"
    if kind not in ("none", "linear", "yarn"):
        raise f.unsupported("rope.scaling.type", f"rope scaling {kind!r}; known: none, linear, yarn")
    if rope_factors is not None:
        if kind != "none":
            raise f.unsupported("rope.scaling.type", f"{kind!r} together with rope_freqs.weight")
        if not all(math.isfinite(s) and 1e-6 <= s <= 1e6 for s in rope_factors):
            raise ModelFileError(f"{f.where}: tensor 'rope_freqs.weight' holds values outside 1e-6 to 1e6")
        return RopeScaling("factors", factors=rope_factors)
    if kind == "none" or (kind == "linear" and factor == 1.0):
        return None
    if kind == "linear":
        return RopeScaling("linear", factor)
    return RopeScaling(
        "yarn",
        factor,
        f.integer("rope.scaling.original_context_length", 1, MAX_POSITIONS),
        beta_fast=f.number("rope.scaling.yarn_beta_fast", 1e-6, 1e6, 32.0),
        beta_slow=f.number("rope.scaling.yarn_beta_slow", 1e-6, 1e6, 1.0),
        attention_factor=_mscale(factor, 1.0) * f.number("rope.scaling.attn_factor", 1e-6, 1e6, 1.0),
    )


def _mscale(factor: float, scale: float) -> float:
    return 1.0 if factor <= 1.0 else 0.1 * scale * math.log(factor) + 1.0


def _llama3(frequency: float, s: RopeScaling) -> float:
    wavelength = 2.0 * math.pi / frequency
    if wavelength < s.original_max_position / s.high_freq_factor:
        return frequency
    if wavelength > s.original_max_position / s.low_freq_factor:
        return frequency / s.factor
    smooth = (s.original_max_position / wavelength - s.low_freq_factor) / (s.high_freq_factor - s.low_freq_factor)
    return (1.0 - smooth) * frequency / s.factor + smooth * frequency


def _yarn(plain: list[float], dim: int, theta: float, s: RopeScaling) -> list[float]:
    def dimension_of(rotations: float) -> float:
        return dim * math.log(s.original_max_position / (rotations * 2.0 * math.pi)) / (2.0 * math.log(theta))

    low, high = dimension_of(s.beta_fast), dimension_of(s.beta_slow)
    if s.truncate:
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0.0), min(high, dim - 1.0)
    if low == high:
        high += 0.001
    scaled = []
    for i, frequency in enumerate(plain):
        interpolated = min(max((i - low) / (high - low), 0.0), 1.0)
        scaled.append(frequency / s.factor * interpolated + frequency * (1.0 - interpolated))
    return scaled
