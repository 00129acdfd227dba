"""Logical weight names, the shapes they must have, and their names in Hugging Face and GGUF files.

Logical names: `embed`, `layers.{i}.X` for X in attn_norm, q, k, v, o, q_norm, k_norm, mlp_norm, gate, up, down
(`.bias` appended for the biases of q, k, v and o), `final_norm`, `head`.
"""

from __future__ import annotations

from typing import Literal

import numpy as np
import numpy.typing as npt

from headrace.config.model_config import ModelConfig

_HF_LAYER = {
    "attn_norm": "input_layernorm.weight",
    "q": "self_attn.q_proj.weight",
    "k": "self_attn.k_proj.weight",
    "v": "self_attn.v_proj.weight",
    "o": "self_attn.o_proj.weight",
    "q_norm": "self_attn.q_norm.weight",
    "k_norm": "self_attn.k_norm.weight",
    "mlp_norm": "post_attention_layernorm.weight",
    "gate": "mlp.gate_proj.weight",
    "up": "mlp.up_proj.weight",
    "down": "mlp.down_proj.weight",
}
_GGUF_LAYER = {
    "attn_norm": "attn_norm.weight",
    "q": "attn_q.weight",
    "k": "attn_k.weight",
    "v": "attn_v.weight",
    "o": "attn_output.weight",
    "q_norm": "attn_q_norm.weight",
    "k_norm": "attn_k_norm.weight",
    "mlp_norm": "ffn_norm.weight",
    "gate": "ffn_gate.weight",
    "up": "ffn_up.weight",
    "down": "ffn_down.weight",
}
_HF_TOP = {"embed": "model.embed_tokens.weight", "final_norm": "model.norm.weight", "head": "lm_head.weight"}
_GGUF_TOP = {"embed": "token_embd.weight", "final_norm": "output_norm.weight", "head": "output.weight"}


def logical_shapes(config: ModelConfig) -> dict[str, tuple[int, ...]]:
    """Every weight a model of this configuration has: logical name → shape (outputs, inputs) or (width,)."""
    hidden, mlp = config.hidden_size, config.intermediate_size
    q_rows, kv_rows = config.num_heads * config.head_dim, config.num_kv_heads * config.head_dim
    layer: dict[str, tuple[int, ...]] = {
        "attn_norm": (hidden,),
        "q": (q_rows, hidden),
        "k": (kv_rows, hidden),
        "v": (kv_rows, hidden),
        "o": (hidden, q_rows),
        "mlp_norm": (hidden,),
        "gate": (mlp, hidden),
        "up": (mlp, hidden),
        "down": (hidden, mlp),
    }
    if config.qk_norm:
        layer |= {"q_norm": (config.head_dim,), "k_norm": (config.head_dim,)}
    if config.attention_bias:
        layer |= {"q.bias": (q_rows,), "k.bias": (kv_rows,), "v.bias": (kv_rows,)}
    if config.attention_output_bias:
        layer |= {"o.bias": (hidden,)}
    shapes: dict[str, tuple[int, ...]] = {"embed": (config.vocab_size, hidden)}
    for i in range(config.num_layers):
        shapes |= {f"layers.{i}.{name}": shape for name, shape in layer.items()}
    shapes["final_norm"] = (hidden,)
    if not config.tie_word_embeddings:
        shapes["head"] = (config.vocab_size, hidden)
    return shapes


def file_name(logical: str, style: Literal["hf", "gguf"]) -> str:
    """The tensor name that `logical` has in files of that style."""
    top, per_layer, prefix = (
        (_HF_TOP, _HF_LAYER, "model.layers.") if style == "hf" else (_GGUF_TOP, _GGUF_LAYER, "blk.")
    )
    if logical in top:
        return top[logical]
    _, index, name = logical.split(".", 2)
    weight = per_layer[name.removesuffix(".bias")]
    if name.endswith(".bias"):
        weight = weight.removesuffix("weight") + "bias"
    return f"{prefix}{index}.{weight}"


def is_ignorable(name: str, style: Literal["hf", "gguf"], config: ModelConfig) -> bool:
    """Tensors that files carry and that nothing is computed from: saved rope tables, a second copy of a tied head."""
    if style == "gguf":
        return name == "rope_freqs.weight"  # already in config.rope_scaling
    return name.endswith(".rotary_emb.inv_freq") or (name == "lm_head.weight" and config.tie_word_embeddings)


def unpermuted_rows(num_heads: int, head_dim: int) -> npt.NDArray[np.int64]:
    """Row order that undoes the q/k permutation of `llama` GGUF files [num_heads * head_dim].

    Those files interleave the two rope halves of each head (row 2i + j holds element i of half j), as llama.cpp's
    rope for this architecture wants. Entry r names the file row that belongs at row r of the Hugging Face order, where
    rope rotates (i, i + head_dim / 2).
    """
    half = head_dim // 2
    within = (np.arange(half)[None, :] * 2 + np.arange(2)[:, None]).reshape(-1)
    return (np.arange(num_heads)[:, None] * head_dim + within[None, :]).reshape(-1).astype(np.int64)


def row_order(logical: str, style: Literal["hf", "gguf"], config: ModelConfig) -> npt.NDArray[np.int64] | None:
    """The row order of that weight (or bias) in its file, None for the identity."""
    if style != "gguf" or config.architecture != "llama":
        return None
    name = logical.rsplit(".", 1)[-1] if not logical.endswith(".bias") else logical.split(".")[-2]
    if name == "q":
        return unpermuted_rows(config.num_heads, config.head_dim)
    if name == "k":
        return unpermuted_rows(config.num_kv_heads, config.head_dim)
    return None
