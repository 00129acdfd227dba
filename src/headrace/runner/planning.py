"""From a model name to a plan: config, graph, passes, lowering. No weights are read beyond their headers."""

from __future__ import annotations

from dataclasses import dataclass

from headrace import _native
from headrace.config.engine import EngineConfig
from headrace.config.model_config import ModelConfig
from headrace.core.errors import ConfigError
from headrace.graph.passes.fuse import fuse
from headrace.graph.plan import Plan
from headrace.kernels.lowering import Limits, lower
from headrace.kernels.packing import packed_formats, quantised_sources
from headrace.models.registry import build_graph
from headrace.weights.checkpoint import Checkpoint, open_checkpoint
from headrace.weights.hub import resolve_model


@dataclass(frozen=True, slots=True)
class PlannedModel:
    """A model that could be loaded: its checkpoint is open, nothing is packed."""

    checkpoint: Checkpoint
    model_config: ModelConfig
    max_model_len: int
    plan: Plan


def choose_isa(config: EngineConfig) -> str:
    """The instruction set level the kernels will use. Raises ConfigError naming those this CPU runs."""
    available = _native.available_isas()
    if config.isa is None:
        return available[0]
    if config.isa not in (*available, "reference"):
        raise ConfigError(f"isa {config.isa!r} is not available on this CPU (available: {', '.join(available)})")
    return config.isa


def resolve_max_model_len(config: EngineConfig, model: ModelConfig) -> int:
    """The context window: the option, at most what the model was trained for. Raises ConfigError."""
    if config.max_model_len is None:
        return model.max_position_embeddings
    if config.max_model_len > model.max_position_embeddings:
        raise ConfigError(
            f"max_model_len {config.max_model_len} exceeds the {model.max_position_embeddings} positions "
            f"that {config.model!r} was trained for",
            param="max_model_len",
        )
    return config.max_model_len


def plan_model(
    config: EngineConfig,
    checkpoint: Checkpoint,
    *,
    fused: bool = True,
    reference_ops: frozenset[str] = frozenset(),
) -> PlannedModel:
    """Compile the plan of an open checkpoint.

    For comparison: `fused=False` keeps one call per op, `reference_ops` run on their NumPy faces.
    """
    model = checkpoint.config
    max_model_len = resolve_max_model_len(config, model)
    graph = build_graph(model)
    formats = packed_formats(graph, checkpoint, config.quantization)
    rounded = quantised_sources(graph, checkpoint, config.quantization)
    if fused:
        graph = fuse(graph, formats)
    limits = Limits(
        max_num_batched_tokens=config.max_num_batched_tokens,
        max_num_seqs=config.max_num_seqs,
        max_model_len=max_model_len,
        max_logits_rows=config.num_logits_rows,
    )
    plan = lower(
        graph,
        model=f"{model.architecture}/{checkpoint.revision_hash}",
        formats=formats,
        rounded=rounded,
        limits=limits,
        rotary_dim=model.head_dim,
        isa=choose_isa(config),
        kv_dtype=config.kv_dtype,
        reference_ops=reference_ops,
    )
    return PlannedModel(checkpoint, model, max_model_len, plan)


def describe_plan(config: EngineConfig) -> Plan:
    """The plan that `headrace serve` would run for these options."""
    return plan_model(config, open_checkpoint(resolve_model(config.model, config.revision))).plan
