"""ModelConfig takes what the families need and names every field that is wrong, missing or not computed."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.config.model_config import ARCHITECTURES, ModelConfig
from headrace.core.errors import ModelFileError, UnsupportedModelError

HF: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "intermediate_size": 128,
    "vocab_size": 300,
    "max_position_embeddings": 512,
    "rms_norm_eps": 1e-5,
    "hidden_act": "silu",
}
GGUF: dict[str, Any] = {
    "general.architecture": "llama",
    "llama.block_count": 2,
    "llama.context_length": 512,
    "llama.embedding_length": 64,
    "llama.feed_forward_length": 128,
    "llama.attention.head_count": 4,
    "llama.attention.head_count_kv": 2,
    "llama.attention.layer_norm_rms_epsilon": 1e-5,
    "llama.vocab_size": 300,
}


def hf(**changes: Any) -> ModelConfig:
    return ModelConfig.from_hf(HF | changes)


def gguf(changes: Mapping[str, Any], names: tuple[str, ...] = ()) -> ModelConfig:
    return ModelConfig.from_gguf(GGUF | changes, tensor_names=names)


def test_plain_configurations_agree() -> None:
    assert hf(tie_word_embeddings=True) == gguf({})
    assert gguf({}, names=("output.weight",)).tie_word_embeddings is False


def test_families_have_their_biases_and_norms() -> None:
    qwen2 = hf(model_type="qwen2", architectures=["Qwen2ForCausalLM"])
    assert (qwen2.attention_bias, qwen2.attention_output_bias, qwen2.qk_norm) == (True, False, False)
    qwen3 = hf(model_type="qwen3", architectures=["Qwen3ForCausalLM"])
    assert (qwen3.attention_bias, qwen3.qk_norm, qwen3.head_dim) == (False, True, 128)
    biased = hf(attention_bias=True)
    assert biased.attention_bias and biased.attention_output_bias
    shown = gguf({}, names=("blk.0.attn_q.bias", "blk.0.attn_q_norm.weight"))
    assert shown.attention_bias and shown.qk_norm and not shown.attention_output_bias


def test_the_class_decides_and_bare_decoders_go_by_model_type() -> None:
    assert hf(architectures=["Qwen2ForCausalLM"]).architecture == "qwen2"
    assert hf(architectures=["LlamaModel"]).architecture == "llama"
    assert ModelConfig.from_hf({k: v for k, v in HF.items() if k != "architectures"}).architecture == "llama"


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"architectures": ["Qwen3MoeForCausalLM"], "model_type": "qwen3_moe"},
            "'Qwen3MoeForCausalLM' is not supported",
        ),
        ({"architectures": ["LlamaForSequenceClassification"]}, "'LlamaForSequenceClassification' is not supported"),
        (
            {"architectures": None, "model_type": "lama"},
            "'lama' is not supported; nearest: 'llama'; known: llama, qwen2",
        ),
        ({"architectures": [], "model_type": None}, r"'\(none named\)' is not supported"),
        ({"hidden_act": "gelu"}, "hidden_act: activation 'gelu'"),
        ({"mlp_bias": True}, "mlp_bias: this feature is not computed"),
        ({"sliding_window": 4096}, "sliding_window"),
        ({"sliding_window": 4096, "use_sliding_window": True}, "sliding_window"),
        ({"layer_types": ["full_attention", "sliding_attention"]}, "layer_types"),
        ({"num_local_experts": 8}, "num_local_experts"),
        ({"quantization_config": {"quant_method": "gptq"}}, "quantization_config"),
        ({"text_config": {}}, "text_config"),
        ({"attn_logit_softcapping": 50.0}, "attn_logit_softcapping"),
        ({"rope_parameters": {"rope_type": "longrope"}}, "rope_type: rope scaling 'longrope'"),
        ({"rope_scaling": {"type": "dynamic", "factor": 2.0}}, "rope scaling 'dynamic'"),
        ({"rope_parameters": {"partial_rotary_factor": 0.5}}, "partial_rotary_factor"),
    ],
)
def test_features_that_are_not_computed_are_named(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(UnsupportedModelError, match=message):
        hf(**changes)


def test_a_window_that_says_it_is_unused_is_no_obstacle() -> None:
    assert hf(sliding_window=4096, use_sliding_window=False, layer_types=["full_attention"] * 2) == hf()


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("num_hidden_layers", 10**6, "num_hidden_layers must be an integer from 1 to 1024, got 1000000"),
        ("num_hidden_layers", 0, "num_hidden_layers"),
        ("num_hidden_layers", True, "num_hidden_layers .* got True"),
        ("num_hidden_layers", 2.0, "num_hidden_layers"),
        ("hidden_size", "64", "hidden_size must be an integer"),
        ("hidden_size", None, "hidden_size is missing"),
        ("vocab_size", 1 << 40, "vocab_size"),
        ("num_key_value_heads", 3, "4 query heads are no multiple of 3 KV heads"),
        ("head_dim", 15, "head size 15 is odd"),
        ("rms_norm_eps", math.nan, "rms_norm_eps"),
        ("rms_norm_eps", "x" * 1000, "rms_norm_eps must be a number .* got 'x+…$"),
        ("rope_theta", math.inf, "rope_theta"),
        ("rope_theta", 1.0, "rope_theta"),
        ("eos_token_id", [1, 300], "eos_token_id"),
        ("eos_token_id", -1, "eos_token_id"),
        ("bos_token_id", 300, "bos_token_id"),
        ("tie_word_embeddings", "yes", "tie_word_embeddings must be true or false"),
        ("rope_scaling", [1], "rope_scaling must be an object"),
        ("rope_scaling", {"rope_type": "linear"}, "rope_scaling: factor is missing"),
        ("rope_scaling", {"rope_type": "linear", "factor": 0}, "factor must be a number"),
        (
            "rope_scaling",
            {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 4.0, "high_freq_factor": 4.0},
            "high_freq_factor 4.0 must be greater",
        ),
    ],
)
def test_bad_values_are_named_with_their_range(key: str, value: object, message: str) -> None:
    with pytest.raises(ModelFileError, match=message):
        hf(**{key: value})


@pytest.mark.parametrize(
    ("key", "value", "error", "message"),
    [
        ("llama.block_count", 10**6, ModelFileError, "llama.block_count must be an integer from 1 to 1024"),
        ("llama.block_count", "2", ModelFileError, "llama.block_count"),
        ("llama.block_count", np.array([2, 2]), ModelFileError, "llama.block_count"),
        ("llama.feed_forward_length", [1, 2], ModelFileError, "llama.feed_forward_length"),
        ("general.architecture", "lamma", UnsupportedModelError, "'lamma' is not supported; nearest: 'llama'"),
        ("general.architecture", 7, ModelFileError, "general.architecture must be a string"),
        ("general.architecture", None, ModelFileError, "general.architecture is missing"),
        ("llama.expert_count", 8, UnsupportedModelError, "llama.expert_count"),
        ("llama.attention.sliding_window", 4096, UnsupportedModelError, "llama.attention.sliding_window"),
        ("llama.attention.sliding_window", np.array([1, 2]), UnsupportedModelError, "llama.attention.sliding_window"),
        ("llama.attention.value_length", 8, UnsupportedModelError, "llama.attention.value_length"),
        ("llama.rope.dimension_count", 8, UnsupportedModelError, "llama.rope.dimension_count"),
        ("llama.rope.scaling.type", "longrope", UnsupportedModelError, "rope scaling 'longrope'"),
        ("llama.rope.freq_base", "1e4", ModelFileError, "llama.rope.freq_base"),
        ("tokenizer.ggml.eos_token_id", 300, ModelFileError, "tokenizer.ggml.eos_token_id"),
    ],
)
def test_bad_gguf_values_are_named(key: str, value: object, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        gguf({key: value})


def test_the_vocabulary_is_as_large_as_the_token_list() -> None:
    assert gguf({"tokenizer.ggml.tokens": ["a", "b", "c"]}).vocab_size == 3


def test_both_end_tokens_of_a_gguf_file_count() -> None:
    config = gguf({"tokenizer.ggml.eos_token_id": 7, "tokenizer.ggml.eot_token_id": 9})
    assert config.eos_token_ids == (7, 9)
    assert gguf({"tokenizer.ggml.eos_token_id": 7, "tokenizer.ggml.eot_token_id": 7}).eos_token_ids == (7,)


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=5,
)


@settings(max_examples=200, deadline=None)
@given(data=st.data())
def test_any_value_anywhere_is_read_or_refused(data: st.DataObject) -> None:
    keys = [
        *HF,
        "head_dim",
        "rope_theta",
        "rope_scaling",
        "rope_parameters",
        "eos_token_id",
        "bos_token_id",
        "layer_types",
    ]
    changed = data.draw(st.dictionaries(st.sampled_from(keys), json_values, max_size=3))
    try:
        config = hf(**changed)
    except (ModelFileError, UnsupportedModelError):
        return
    assert config.architecture in ARCHITECTURES
    assert all(math.isfinite(f) and f > 0 for f in config.inv_freq())
