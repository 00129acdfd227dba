"""The memory plan: what is reserved for what, in bytes that add up to the budget."""

from __future__ import annotations

import resource
from collections.abc import Callable
from dataclasses import dataclass

from headrace.cache.spec import LayerGroupSpec
from headrace.config.engine import EngineConfig
from headrace.config.human import format_bytes
from headrace.config.machine import MemoryBudget
from headrace.config.memory_table import memory_table
from headrace.core.errors import CapacityError
from headrace.core.stats import MemoryLine
from headrace.graph.plan import Plan, PlanCall
from headrace.kernels.table import KV_ELEMENT_BYTES
from headrace.runner.region import PROCESS

NULL_BLOCKS = 1
_ELEMENT_BYTES = 4
_ROW_BYTES = 512
_THREAD_BYTES = 1 << 18
_QUERY_TOKENS, _TILE_TOKENS, _SPLIT_TOKENS, _UNITS_PER_THREAD = 16, 64, 256, 4


@dataclass(frozen=True, slots=True)
class MemoryPlan:
    """Reserved bytes by purpose. `num_blocks` of each layer group includes the null block."""

    budget: MemoryBudget
    max_model_len: int
    weights_bytes: int
    arena_bytes: int
    tables_bytes: int
    executor_bytes: int
    process_bytes: int
    specs: tuple[LayerGroupSpec, ...]
    num_blocks: tuple[int, ...]

    @property
    def kv_bytes(self) -> tuple[int, ...]:
        return tuple(n * s.bytes_per_block for n, s in zip(self.num_blocks, self.specs, strict=True))

    @property
    def kv_tokens(self) -> int:
        """Tokens that the smallest layer group can hold."""
        return min((n - NULL_BLOCKS) * s.block_size for n, s in zip(self.num_blocks, self.specs, strict=True))

    @property
    def total_bytes(self) -> int:
        return _fixed(self) + sum(self.kv_bytes)

    def lines(self, resident: dict[str, int] | None = None) -> list[MemoryLine]:
        """The table. `resident`: region name → bytes in memory now; committed is what has been touched so far."""
        seen = resident or {}
        rows = [
            ("weights", self.weights_bytes, "one packed copy"),
            ("arena", self.arena_bytes, "activations and logits of the largest step"),
            ("tables", self.tables_bytes, "rotary embedding, taps"),
            ("executor", self.executor_bytes, "rows, block tables, scratch (resident: within process)"),
        ]
        rows += [
            (
                f"kv {spec.kind}",
                size,
                f"{spec.bytes_per_token} bytes per token, {(n - NULL_BLOCKS) * spec.block_size} tokens",
            )
            for spec, size, n in zip(self.specs, self.kv_bytes, self.num_blocks, strict=True)
        ]
        rows.append(
            (PROCESS, self.process_bytes, "interpreter, libraries and the rest; reserved: as it was before loading")
        )
        return [
            MemoryLine(
                name=name,
                reserved_bytes=size,
                committed_bytes=seen.get(name, 0 if resident else size),
                resident_bytes=seen.get(name, 0),
                note=note,
            )
            for name, size, note in rows
        ]


def layer_group_specs(plan: Plan, block_size: int) -> tuple[LayerGroupSpec, ...]:
    """The cache specs of a plan's layer groups."""
    return tuple(
        LayerGroupSpec(
            kind=group.kind,
            num_layers=group.num_layers,
            num_kv_heads=group.num_kv_heads,
            head_dim=group.head_dim,
            block_size=block_size,
            element_bytes=KV_ELEMENT_BYTES[plan.kv_dtype],
        )
        for group in plan.kv_groups
    )


def executor_bytes(
    plan: Plan, config: EngineConfig, specs: tuple[LayerGroupSpec, ...], num_threads: int, max_model_len: int
) -> int:
    """An upper bound of what the native executor allocates for itself: `Executor.memory_bytes()` is at most this.

    Rows with their tables and outputs; prepared activations of the widest matmul; per thread a vocabulary of
    candidates, and scratch.
    """
    linears = [c for c in plan.calls if c.op == "linear"]
    vocab = max((c.dims[0] for c in plan.calls if c.op == "sample"), default=0)
    width = max((c.dims[1] for c in linears), default=0)
    per_row = (max_model_len + sum(s.blocks_needed(max_model_len) for s in specs)) * _ELEMENT_BYTES + _ROW_BYTES
    per_logits_row = _ROW_BYTES + vocab // 512
    activations = (width + 64) * _ELEMENT_BYTES
    attention = max(
        (_attention_bytes(c, num_threads, max_model_len) for c in plan.calls if c.op == "attention"), default=0
    )
    return (
        config.max_num_seqs * per_row
        + config.num_logits_rows * per_logits_row
        + config.max_num_batched_tokens * (activations + _ELEMENT_BYTES * 16)
        + num_threads * (vocab * 4 * _ELEMENT_BYTES + 2 * activations + _THREAD_BYTES)
        + attention
    )


def _attention_bytes(call: PlanCall, num_threads: int, max_model_len: int) -> int:
    """Scratch of a call per thread (packed queries, a tile of keys and values, two partial results of 16 tokens), and
    partial results of the tiles that are split over the history."""
    num_heads, num_kv_heads, head_dim = call.dims[2:5]
    group_heads, row = num_heads // num_kv_heads, head_dim + 64
    scratch = 3 * _QUERY_TOKENS * group_heads * row + 2 * _TILE_TOKENS * row
    partials = _UNITS_PER_THREAD * -(-max_model_len // _SPLIT_TOKENS) * group_heads * row
    return num_threads * (scratch + partials) * _ELEMENT_BYTES


def plan_memory(
    plan: Plan, config: EngineConfig, specs: tuple[LayerGroupSpec, ...], budget: MemoryBudget, *, num_threads: int
) -> MemoryPlan:
    """Give the KV cache what the rest leaves of the budget, at most what max_num_seqs can use.

    Raises CapacityError with the table, and with the largest max_model_len that does fit, when one sequence of
    max_model_len tokens does not.
    """
    max_model_len = plan.limits["max_model_len"]

    def without_kv(length: int) -> MemoryPlan:
        return _without_kv(plan, config, specs, budget, num_threads, length)

    base = without_kv(max_model_len)
    fixed = _fixed(base)
    per_sequence = tuple(s.blocks_needed(max_model_len) for s in specs)
    useful = tuple(n * config.max_num_seqs + NULL_BLOCKS for n in per_sequence)
    wanted = sum(n * s.bytes_per_block for n, s in zip(useful, specs, strict=True))
    granted = config.kv_cache_memory_bytes or max(0, budget.budget_bytes - fixed)
    share = min(1.0, granted / wanted)
    blocks = tuple(min(n, int(n * share)) for n in useful)
    planned = _with_blocks(base, blocks)
    short = any(n - NULL_BLOCKS < need for n, need in zip(blocks, per_sequence, strict=True))
    if short or planned.total_bytes > budget.budget_bytes:
        raise CapacityError(_refusal(planned, config, largest_max_model_len(without_kv, config, max_model_len)))
    return planned


def largest_max_model_len(without_kv: Callable[[int], MemoryPlan], config: EngineConfig, at_most: int) -> int:
    """The most tokens one sequence can have within the budget, computed back; 0 when not even a block fits."""

    def fits(length: int) -> bool:
        base = without_kv(length)
        kv = sum((s.blocks_needed(length) + NULL_BLOCKS) * s.bytes_per_block for s in base.specs)
        if config.kv_cache_memory_bytes is not None and kv > config.kv_cache_memory_bytes:
            return False
        return _fixed(base) + kv <= base.budget.budget_bytes

    low, high = 0, at_most // config.block_size
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if fits(middle * config.block_size) else (low, middle - 1)
    return low * config.block_size


def _without_kv(
    plan: Plan,
    config: EngineConfig,
    specs: tuple[LayerGroupSpec, ...],
    budget: MemoryBudget,
    num_threads: int,
    max_model_len: int,
) -> MemoryPlan:
    scale = max_model_len / plan.limits["max_model_len"]
    return MemoryPlan(
        budget=budget,
        max_model_len=max_model_len,
        weights_bytes=plan.weights_bytes,
        arena_bytes=plan.arena_bytes,
        tables_bytes=int(plan.constants_bytes * scale) + plan.taps_bytes,
        executor_bytes=executor_bytes(plan, config, specs, num_threads, max_model_len),
        process_bytes=resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
        specs=specs,
        num_blocks=tuple(0 for _ in specs),
    )


def _with_blocks(base: MemoryPlan, blocks: tuple[int, ...]) -> MemoryPlan:
    values = {name: getattr(base, name) for name in MemoryPlan.__slots__}
    return MemoryPlan(**{**values, "num_blocks": blocks})


def _fixed(plan: MemoryPlan) -> int:
    return plan.weights_bytes + plan.arena_bytes + plan.tables_bytes + plan.executor_bytes + plan.process_bytes


def _refusal(planned: MemoryPlan, config: EngineConfig, length: int) -> str:
    need = sum(s.blocks_needed(planned.max_model_len) * s.bytes_per_block for s in planned.specs)
    budget = planned.budget
    knob = "--memory-budget-bytes" if config.kv_cache_memory_bytes is None else "--kv-cache-memory-bytes"
    hint = f"--max-model-len {length} fits" if length else f"not even one block fits; raise {knob}"
    return "\n".join(
        [
            f"{planned.max_model_len} tokens of context do not fit the memory budget: {hint}",
            *memory_table(planned.lines(), planned=True),
            f"one sequence of {planned.max_model_len} tokens needs {format_bytes(need)} of KV cache;"
            f" the budget is {format_bytes(budget.budget_bytes)} ({budget.source})"
            + (
                f", of which {knob} leaves it {format_bytes(config.kv_cache_memory_bytes)}"
                if config.kv_cache_memory_bytes
                else ""
            ),
        ]
    )
