"""ModelConfig: the numbers that describe a decoder, from a config.json or from GGUF metadata.

Everything comes from a file that may be hostile or from a newer world than ours: every number is bounds-checked, and a
feature that headrace does not compute is an UnsupportedModelError that names the field, never a silent default.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

from headrace.config.model_fields import GGUF, HF, Fields
from headrace.config.rope import MAX_POSITIONS, RopeScaling, frequencies, gguf_rope_scaling, hf_rope_scaling
from headrace.core.errors import ModelFileError, UnsupportedModelError, nearest

ARCHITECTURES = ("llama", "qwen2", "qwen3")
MAX_LAYERS = 1024
MAX_WIDTH = 1 << 20
MAX_HEADS = 1 << 12
MAX_HEAD_DIM = 1 << 12
MAX_VOCAB = 1 << 24
THETA_RANGE = (1.5, 1e12)

_HF_CLASSES = {"LlamaForCausalLM": "llama", "Qwen2ForCausalLM": "qwen2", "Qwen3ForCausalLM": "qwen3"}


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelConfig:
    """A dense decoder. All sizes count elements; all are at least 1 and have sane upper bounds."""

    architecture: str
    hidden_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    intermediate_size: int
    vocab_size: int
    rms_norm_eps: float
    rope_theta: float
    rope_scaling: RopeScaling | None = None
    max_position_embeddings: int
    tie_word_embeddings: bool = False
    attention_bias: bool = False
    """q, k and v projections have a bias."""
    attention_output_bias: bool = False
    qk_norm: bool = False
    """An RMS norm over each head of q and k, before rope."""
    eos_token_ids: tuple[int, ...] = ()
    bos_token_id: int | None = None

    @classmethod
    def from_hf(cls, config: Mapping[str, Any], *, where: str = "config.json") -> ModelConfig:
        """From the contents of a Hugging Face config.json (transformers 4 and 5 spellings).

        Raises UnsupportedModelError for unknown architectures and features, ModelFileError for bad values.
        """
        return _from_hf(Fields(config, where, HF))

    @classmethod
    def from_gguf(
        cls,
        metadata: Mapping[str, Any],
        *,
        tensor_names: Collection[str],
        rope_factors: tuple[float, ...] | None = None,
        where: str = "GGUF metadata",
    ) -> ModelConfig:
        """From GGUF metadata. Biases, q/k norms and a head of its own show in the tensor names only.

        rope_factors: the values of the tensor `rope_freqs.weight` where the file has it.
        Raises UnsupportedModelError for unknown architectures and features, ModelFileError for bad values.
        """
        return _from_gguf(Fields(metadata, where, GGUF), tensor_names, rope_factors)

    def inv_freq(self) -> list[float]:
        """Rotary inverse frequencies [head_dim / 2] in double precision, scaling included (radians per position)."""
        return frequencies(self.head_dim, self.rope_theta, self.rope_scaling)

    @property
    def rope_attention_factor(self) -> float:
        """What cos and sin are multiplied by: 1 but for YaRN."""
        return self.rope_scaling.attention_factor if self.rope_scaling else 1.0

    def __post_init__(self) -> None:
        if self.num_heads % self.num_kv_heads:
            raise ModelFileError(f"{self.num_heads} query heads are no multiple of {self.num_kv_heads} KV heads")
        if self.head_dim % 2:
            raise ModelFileError(f"the head size {self.head_dim} is odd; rope rotates pairs")
        scaling = self.rope_scaling
        if scaling is not None and scaling.kind == "factors" and len(scaling.factors) != self.head_dim // 2:
            raise ModelFileError(f"{len(scaling.factors)} rope factors for a head size of {self.head_dim}")
        for token in (*self.eos_token_ids, *([] if self.bos_token_id is None else [self.bos_token_id])):
            if not 0 <= token < self.vocab_size:
                raise ModelFileError(f"special token id {token} is outside the vocabulary of {self.vocab_size}")


def _unknown_architecture(name: str, where: str) -> UnsupportedModelError:
    guess = nearest(name, ARCHITECTURES)
    hint = f"nearest: {guess!r}; " if guess else ""
    return UnsupportedModelError(
        f"{where}: architecture {name!r} is not supported; {hint}known: {', '.join(ARCHITECTURES)}"
    )


def _from_hf(f: Fields) -> ModelConfig:
    architecture = f.text("model_type", "")
    classes = f.values.get("architectures")
    named = classes[0] if isinstance(classes, list) and classes and isinstance(classes[0], str) else ""
    if named and named in _HF_CLASSES:
        architecture = _HF_CLASSES[named]
    elif named and not named.endswith("Model"):  # LlamaModel and the like: the decoder without a head class
        raise _unknown_architecture(named, f.where)
    if architecture not in ARCHITECTURES:
        raise _unknown_architecture(architecture or "(none named)", f.where)
    f.refuse_hf_features()
    hidden, heads = f.integer("hidden_size", 1, MAX_WIDTH), f.integer("num_attention_heads", 1, MAX_HEADS)
    head_dim = f.integer("head_dim", 2, MAX_HEAD_DIM, 128 if architecture == "qwen3" else hidden // heads)
    positions = f.integer("max_position_embeddings", 1, MAX_POSITIONS)
    rope = f.nested("rope_parameters") or f.nested("rope_scaling")
    theta = rope.number("rope_theta", *THETA_RANGE, f.number("rope_theta", *THETA_RANGE, 10000.0))
    bias = f.boolean("attention_bias", False)
    vocab = f.integer("vocab_size", 1, MAX_VOCAB)
    return ModelConfig(
        architecture=architecture,
        hidden_size=hidden,
        num_layers=f.integer("num_hidden_layers", 1, MAX_LAYERS),
        num_heads=heads,
        num_kv_heads=f.integer("num_key_value_heads", 1, MAX_HEADS, heads),
        head_dim=head_dim,
        intermediate_size=f.integer("intermediate_size", 1, MAX_WIDTH),
        vocab_size=vocab,
        rms_norm_eps=f.number("rms_norm_eps", 0.0, 1.0, 1e-6),
        rope_theta=theta,
        rope_scaling=hf_rope_scaling(rope, positions),
        max_position_embeddings=positions,
        tie_word_embeddings=f.boolean("tie_word_embeddings", False),
        attention_bias=bias or architecture == "qwen2",
        attention_output_bias=bias and architecture != "qwen2",
        qk_norm=architecture == "qwen3",
        eos_token_ids=f.integers("eos_token_id", 0, vocab - 1),
        bos_token_id=f.optional_integer("bos_token_id", 0, vocab - 1),
    )


def _from_gguf(f: Fields, names: Collection[str], rope_factors: tuple[float, ...] | None) -> ModelConfig:
    architecture = f.text("general.architecture")
    if architecture not in ARCHITECTURES:
        raise _unknown_architecture(architecture, f.where)
    f = f.under(f"{architecture}.")
    f.refuse_gguf_features()
    hidden, heads = f.integer("embedding_length", 1, MAX_WIDTH), f.integer("attention.head_count", 1, MAX_HEADS)
    head_dim = f.integer("attention.key_length", 2, MAX_HEAD_DIM, hidden // heads)
    if f.integer("attention.value_length", 1, MAX_HEAD_DIM, head_dim) != head_dim:
        raise f.unsupported("attention.value_length", "values of another size than keys are not computed")
    if f.integer("rope.dimension_count", 1, MAX_HEAD_DIM, head_dim) != head_dim:
        raise f.unsupported("rope.dimension_count", "rope over a part of the head is not computed")
    whole = f.under("")
    tokens = whole.values.get("tokenizer.ggml.tokens")
    num_tokens = len(tokens) if isinstance(tokens, list) and tokens else None
    vocab = num_tokens or f.integer("vocab_size", 1, MAX_VOCAB)
    eos = [whole.optional_integer(f"tokenizer.ggml.{key}_token_id", 0, vocab - 1) for key in ("eos", "eot")]
    return ModelConfig(
        architecture=architecture,
        hidden_size=hidden,
        num_layers=f.integer("block_count", 1, MAX_LAYERS),
        num_heads=heads,
        num_kv_heads=f.integer("attention.head_count_kv", 1, MAX_HEADS, heads),
        head_dim=head_dim,
        intermediate_size=f.integer("feed_forward_length", 1, MAX_WIDTH),
        vocab_size=vocab,
        rms_norm_eps=f.number("attention.layer_norm_rms_epsilon", 0.0, 1.0),
        rope_theta=f.number("rope.freq_base", *THETA_RANGE, 10000.0),
        rope_scaling=gguf_rope_scaling(f, rope_factors),
        max_position_embeddings=f.integer("context_length", 1, MAX_POSITIONS),
        tie_word_embeddings="output.weight" not in names,
        attention_bias="blk.0.attn_q.bias" in names,
        attention_output_bias="blk.0.attn_output.bias" in names,
        qk_norm="blk.0.attn_q_norm.weight" in names,
        eos_token_ids=tuple(dict.fromkeys(t for t in eos if t is not None)),
        bos_token_id=whole.optional_integer("tokenizer.ggml.bos_token_id", 0, vocab - 1),
    )
