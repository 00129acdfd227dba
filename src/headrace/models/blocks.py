"""Pieces of a decoder layer that families share."""

from __future__ import annotations

from headrace.config.model_config import ModelConfig
from headrace.graph.builder import GraphBuilder, LayerScope, X
from headrace.graph.ir import KvLayers


def decoder_builder(config: ModelConfig, *, bias: tuple[str, ...] = ()) -> GraphBuilder:
    """A builder with one full-attention layer group. `bias`: names within a layer whose projection has a bias."""
    kv = KvLayers("full", config.num_layers, config.num_kv_heads, config.head_dim)
    biased = frozenset(f"layers.{i}.{name}" for i in range(config.num_layers) for name in bias)
    return GraphBuilder(vocab_size=config.vocab_size, hidden_size=config.hidden_size, kv=kv, bias=biased)


def attention_biases(config: ModelConfig) -> tuple[str, ...]:
    """Names within a layer of the attention projections that have a bias."""
    return ("q", "k", "v") * config.attention_bias + ("o",) * config.attention_output_bias


def qkv(g: GraphBuilder, config: ModelConfig, h: X, layer: LayerScope) -> tuple[X, X, X]:
    """Query, key and value projections: widths num_heads * head_dim and twice num_kv_heads * head_dim."""
    kv_width = config.num_kv_heads * config.head_dim
    return (
        g.linear(h, layer.w("q"), config.num_heads * config.head_dim),
        g.linear(h, layer.w("k"), kv_width),
        g.linear(h, layer.w("v"), kv_width),
    )


def causal_attention(g: GraphBuilder, config: ModelConfig, q: X, k: X, v: X, layer: LayerScope) -> X:
    """Rotate q and k, attend, project back to hidden_size."""
    q, k = (g.rope(t, config.head_dim, config.head_dim) for t in (q, k))
    o = g.attention(q, k, v, layer, num_heads=config.num_heads, scale=config.head_dim**-0.5)
    return g.linear(o, layer.w("o"), config.hidden_size, row_parallel=True)


def swiglu(g: GraphBuilder, config: ModelConfig, h: X, layer: LayerScope) -> X:
    """down(silu(gate(h)) * up(h))  (Shazeer 2020, GLU Variants Improve Transformer)."""
    gate = g.linear(h, layer.w("gate"), config.intermediate_size)
    up = g.linear(h, layer.w("up"), config.intermediate_size)
    return g.linear(g.silu_mul(gate, up), layer.w("down"), config.hidden_size, row_parallel=True)


def head(g: GraphBuilder, config: ModelConfig, x: X) -> None:
    """Final norm, logits from the head (the embedding itself where tied), sampling."""
    x = g.rms_norm(x, "final_norm", config.rms_norm_eps)
    g.head(x, "embed" if config.tie_word_embeddings else "head", kind="sample")
