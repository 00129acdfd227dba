"""Typed, bounds-checked access to the keys of a config.json or of GGUF metadata, and the features refused there."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, Literal

from headrace.core.errors import ModelFileError, UnsupportedModelError

HF: Literal["hf"] = "hf"
GGUF: Literal["gguf"] = "gguf"

_HF_REFUSED: dict[str, tuple[object, ...]] = {
    # field: values that mean "not used"; anything else changes the arithmetic
    "mlp_bias": (None, False),
    "sliding_window": (None, 0),
    "num_local_experts": (None, 0),
    "num_experts": (None, 0),
    "n_routed_experts": (None, 0),
    "quantization_config": (None,),
    "text_config": (None,),
    "final_logit_softcapping": (None, 0),
    "attn_logit_softcapping": (None, 0),
    "clip_qkv": (None,),
    "logit_scale": (None, 1),
    "logits_scaling": (None, 1),
    "embedding_multiplier": (None, 1),
    "residual_multiplier": (None, 1),
    "attention_multiplier": (None,),
    "query_pre_attn_scalar": (None,),
    "is_encoder_decoder": (None, False),
    "parallel_attn": (None, False),
    "alibi": (None, False),
}
_GGUF_REFUSED: dict[str, tuple[object, ...]] = {
    "attention.sliding_window": (0,),
    "attention.causal": (True,),
    "attention.clamp_kqv": (0,),
    "attention.max_alibi_bias": (0,),
    "attention.scale": (0,),
    "attn_logit_softcapping": (0,),
    "final_logit_softcapping": (0,),
    "logit_scale": (0, 1),
    "embedding_scale": (0, 1),
    "residual_scale": (0, 1),
    "expert_count": (0,),
    "use_parallel_residual": (False,),
}


class Fields:
    """The values of one mapping, read by key with type and range checked; errors name `where` and the key."""

    def __init__(self, values: Mapping[str, Any], where: str, style: Literal["hf", "gguf"], prefix: str = "") -> None:
        self.values = values
        self.where = where
        self.prefix = prefix
        self._style = style

    def __contains__(self, key: str) -> bool:
        return self.values.get(self.prefix + key) is not None

    def __bool__(self) -> bool:
        return bool(self.values)

    def under(self, prefix: str) -> Fields:
        """The same values, keys read with another prefix."""
        return Fields(self.values, self.where, self._style, prefix)

    def nested(self, key: str) -> Fields:
        """The object at `key`; empty when it is absent or null."""
        value = self.values.get(self.prefix + key)
        if value is None:
            return Fields({}, f"{self.where}: {key}", self._style)
        if not isinstance(value, Mapping):
            raise self.bad(key, "an object", value)
        return Fields(value, f"{self.where}: {key}", self._style)

    def text(self, key: str, default: str | None = None) -> str:
        value = self._get(key, default)
        if not isinstance(value, str):
            raise self.bad(key, "a string", value)
        return value

    def boolean(self, key: str, default: bool) -> bool:
        value = self._get(key, default)
        if not isinstance(value, bool):
            raise self.bad(key, "true or false", value)
        return value

    def integer(self, key: str, low: int, high: int, default: int | None = None) -> int:
        value = self._get(key, default)
        if type(value) is not int or not low <= value <= high:
            raise self.bad(key, f"an integer from {low} to {high}", value)
        return value

    def optional_integer(self, key: str, low: int, high: int) -> int | None:
        return self.integer(key, low, high) if key in self else None

    def integers(self, key: str, low: int, high: int) -> tuple[int, ...]:
        """An integer, a list of them, or nothing."""
        value = self.values.get(self.prefix + key)
        listed = value if isinstance(value, list) else [] if value is None else [value]
        for item in listed:
            if type(item) is not int or not low <= item <= high:
                raise self.bad(key, f"integers from {low} to {high}", value)
        return tuple(dict.fromkeys(listed))

    def number(self, key: str, low: float, high: float, default: float | None = None) -> float:
        value = self._get(key, default)
        if isinstance(value, bool) or not isinstance(value, (int, float)) or not low <= value <= high:
            raise self.bad(key, f"a number from {low:g} to {high:g}", value)
        number = float(value)
        if not math.isfinite(number):
            raise self.bad(key, "a finite number", value)
        return number

    def bad(self, key: str, expected: str, value: object) -> ModelFileError:
        shown = repr(value)
        shown = shown if len(shown) <= 80 else shown[:80] + "…"
        return ModelFileError(f"{self.where}: {self.prefix}{key} must be {expected}, got {shown}")

    def unsupported(self, key: str, why: str) -> UnsupportedModelError:
        return UnsupportedModelError(f"{self.where}: {self.prefix}{key}: {why}")

    def refuse_hf_features(self) -> None:
        """UnsupportedModelError when a config.json asks for arithmetic that the dense decoders here do not have."""
        if self.text("hidden_act", "silu") not in ("silu", "swish"):
            raise self.unsupported("hidden_act", f"activation {self.values['hidden_act']!r}; known: silu")
        for key, unused in _HF_REFUSED.items():
            if key == "sliding_window" and self.values.get("use_sliding_window") is False:
                continue  # Qwen configs carry a window that they say is not used
            self._refuse(key, unused)
        if self.values.get("use_sliding_window") not in (None, False) and "sliding_window" in self:
            raise self.unsupported("use_sliding_window", "sliding-window attention is not computed")
        layer_types = self.values.get("layer_types")
        if isinstance(layer_types, list) and any(t != "full_attention" for t in layer_types):
            raise self.unsupported("layer_types", "layers other than full attention are not computed")

    def refuse_gguf_features(self) -> None:
        """The same for GGUF metadata."""
        for key, unused in _GGUF_REFUSED.items():
            self._refuse(key, unused)

    def _refuse(self, key: str, unused: tuple[object, ...]) -> None:
        value = self.values.get(self.prefix + key)
        plain = isinstance(value, (bool, int, float))
        if value is not None and not (plain and any(value == u for u in unused)):
            raise self.unsupported(key, "this feature is not computed")

    def _get(self, key: str, default: object) -> Any:
        value = self.values.get(self.prefix + key)
        if value is None:
            if default is None:
                raise ModelFileError(f"{self.where}: {self.prefix}{key} is missing")
            return default
        return value
