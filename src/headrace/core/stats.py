"""EngineStats and MemoryLine: what an engine says of itself, over a socket or in process."""

from __future__ import annotations

import msgspec


class MemoryLine(msgspec.Struct, frozen=True, kw_only=True):
    """One line of the memory table, in bytes."""

    name: str
    reserved_bytes: int
    committed_bytes: int
    resident_bytes: int
    note: str = ""


class EngineInfo(msgspec.Struct, frozen=True, kw_only=True):
    """What an engine decided at start; constant afterwards."""

    model: str
    architecture: str
    max_model_len: int
    max_num_seqs: int
    max_num_batched_tokens: int
    vocab_size: int
    block_size: int
    num_blocks: int
    kv_tokens: int
    isa: str
    num_threads: int
    num_threads_source: str
    budget_bytes: int
    budget_source: str
    structure_id: str
    numerics_id: str
    revision: str
    startup_s: dict[str, float]
    """Phase → seconds."""
    memory: list[MemoryLine]


class EngineStats(msgspec.Struct, frozen=True, kw_only=True):
    """Gauges and counters of a running engine. Counters only grow."""

    num_running: int
    num_waiting: int
    num_blocks: int
    """Usable KV blocks (the null block is not counted)."""
    num_free_blocks: int
    """Blocks that can be handed out, those that still hold reusable prefixes included."""
    block_size: int
    num_steps: int
    num_preemptions: int
    prefix_cache_queries: int
    """Prompt tokens looked up."""
    prefix_cache_hits: int
    """Prompt tokens found."""
    prompt_tokens: int
    generation_tokens: int
    memory: list[MemoryLine] = []
