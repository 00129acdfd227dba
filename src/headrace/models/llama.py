"""Llama: RMS norm, rotary attention with grouped queries, SwiGLU (Touvron et al. 2023; Llama 2 and 3, SmolLM2)."""

from __future__ import annotations

from headrace.config.model_config import ModelConfig
from headrace.graph.builder import GraphBuilder
from headrace.graph.ir import Graph
from headrace.models.blocks import attention_biases, causal_attention, decoder_builder, head, qkv, swiglu


def build(config: ModelConfig) -> Graph:
    """The graph of a Llama decoder with a sampling head."""
    g: GraphBuilder = decoder_builder(config, bias=attention_biases(config))
    eps = config.rms_norm_eps
    x = g.inputs()
    for layer in g.layers(config.num_layers):
        h = g.rms_norm(x, layer.w("attn_norm"), eps)
        q, k, v = qkv(g, config, h, layer)
        x = x + causal_attention(g, config, q, k, v, layer)
        h = g.rms_norm(x, layer.w("mlp_norm"), eps)
        x = x + swiglu(g, config, h, layer)
    head(g, config, x)
    return g.build()
