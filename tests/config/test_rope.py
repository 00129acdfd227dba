"""Rotary frequencies equal transformers', which computes them in float32."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from headrace.config.model_config import ModelConfig
from headrace.core.errors import ModelFileError
from tests.config.test_model_config import GGUF, HF

SCALINGS: dict[str, dict[str, Any]] = {
    "default": {"rope_type": "default"},
    "linear": {"rope_type": "linear", "factor": 4.0},
    "llama3": {
        "rope_type": "llama3",
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 1024,
    },
    "yarn": {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 1024},
    "yarn with its options": {
        "rope_type": "yarn",
        "factor": 4.0,
        "original_max_position_embeddings": 1024,
        "beta_fast": 16.0,
        "beta_slow": 2.0,
        "truncate": False,
        "mscale": 0.7,
        "mscale_all_dim": 0.5,
    },
    "yarn with its factor": {
        "rope_type": "yarn",
        "factor": 4.0,
        "original_max_position_embeddings": 1024,
        "attention_factor": 1.25,
    },
}
VALUES = HF | {"hidden_size": 256, "max_position_embeddings": 4096}


@pytest.mark.parametrize("theta", [10000.0, 500000.0])
@pytest.mark.parametrize("name", SCALINGS)
def test_frequencies_equal_transformers(name: str, theta: float) -> None:
    transformers = pytest.importorskip("transformers", reason="transformers is the oracle")
    from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

    rope = SCALINGS[name] | {"rope_theta": theta}
    ours = ModelConfig.from_hf(VALUES | {"rope_parameters": rope})
    kind = rope["rope_type"]
    oracle = transformers.LlamaConfig(
        hidden_size=256, num_attention_heads=4, max_position_embeddings=4096, rope_parameters=dict(rope)
    )
    if kind == "default":
        wanted, factor = theta ** (-np.arange(0, 64, 2) / 64), 1.0
    else:
        tensor, factor = ROPE_INIT_FUNCTIONS[kind](oracle, "cpu")
        wanted = tensor.numpy()
    np.testing.assert_allclose(ours.inv_freq(), wanted, rtol=2e-6)
    assert ours.rope_attention_factor == pytest.approx(factor, rel=1e-12)


def test_old_and_new_spelling_say_the_same() -> None:
    rope = SCALINGS["llama3"]
    new = ModelConfig.from_hf(VALUES | {"rope_parameters": rope | {"rope_theta": 5e5}})
    old = ModelConfig.from_hf(VALUES | {"rope_scaling": rope, "rope_theta": 5e5})
    oldest = ModelConfig.from_hf(VALUES | {"rope_scaling": {"type": "linear", "factor": 2.0}})
    assert new == old
    assert oldest.inv_freq()[0] == 0.5


def test_gguf_scalings_equal_the_folders() -> None:
    prefix = "llama.rope.scaling."
    linear = {f"{prefix}type": "linear", f"{prefix}factor": 4.0}
    yarn = {f"{prefix}type": "yarn", f"{prefix}factor": 4.0, f"{prefix}original_context_length": 128}
    for keys, scaling in ((linear, SCALINGS["linear"]), (yarn, SCALINGS["yarn"])):
        ours = ModelConfig.from_gguf(GGUF | keys, tensor_names=())
        folder = ModelConfig.from_hf(
            HF | {"rope_parameters": {k: 128 if "original" in k else v for k, v in scaling.items()}}
        )
        assert ours.inv_freq() == folder.inv_freq()
        assert ours.rope_attention_factor == folder.rope_attention_factor


def test_factors_divide_and_must_be_as_many_as_frequencies() -> None:
    plain = ModelConfig.from_gguf(GGUF, tensor_names=()).inv_freq()
    factors = tuple(float(i + 1) for i in range(8))
    scaled = ModelConfig.from_gguf(GGUF, tensor_names=(), rope_factors=factors).inv_freq()
    assert scaled == [f / s for f, s in zip(plain, factors, strict=True)]
    with pytest.raises(ModelFileError, match="3 rope factors for a head size of 16"):
        ModelConfig.from_gguf(GGUF, tensor_names=(), rope_factors=(1.0, 1.0, 1.0))
