"""The graph's nouns: values, weights, nodes. All immutable; a pass returns a new Graph."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

Rows = Literal["tokens", "logits"]
"""How many rows a value has: the step's tokens, or its logits rows."""

LANES = 16
"""Outputs per packed column block; parts of a fused weight start on such a boundary."""


@dataclass(frozen=True, slots=True)
class Value:
    """An f32 array [rows, width] that some node writes."""

    id: int
    rows: Rows
    width: int
    name: str


@dataclass(frozen=True, slots=True)
class View:
    """Columns [offset, offset + width) of a value."""

    value: int
    offset: int
    width: int


@dataclass(frozen=True, slots=True)
class WeightPart:
    """Where one logical weight lies in a packed slot: its 16-output blocks are first_block + i * block_step."""

    logical: str
    num_outputs: int
    first_block: int = 0
    block_step: int = 1


@dataclass(frozen=True, slots=True)
class WeightSlot:
    """A packed matrix [num_outputs, num_inputs] made of one or more logical weights.

    The parts are the map that the loader report, adapters, live updates and sharding read.
    """

    name: str
    num_outputs: int
    num_inputs: int
    parts: tuple[WeightPart, ...]


@dataclass(frozen=True, slots=True)
class VectorSlot:
    """An f32 vector: a norm's weight or a bias, the concatenation of its parts."""

    name: str
    width: int
    parts: tuple[WeightPart, ...]


@dataclass(frozen=True, slots=True, eq=False)
class Node:
    """One op, told apart by identity.

    `output` may be a view of a value that other nodes write too (in place, or other columns).
    """

    op: str
    inputs: tuple[View, ...]
    output: View | None
    label: str
    weight: WeightSlot | None = None
    vectors: Mapping[str, VectorSlot] = field(default_factory=dict)
    attrs: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class KvLayers:
    """The attention layers that share one cache spec (a layer group)."""

    kind: Literal["full", "sliding", "state", "latent"]
    num_layers: int
    num_kv_heads: int
    head_dim: int


@dataclass(frozen=True, slots=True)
class Graph:
    """A model: nodes in execution order, the values they write, and its layer groups."""

    values: Mapping[int, Value]
    nodes: tuple[Node, ...]
    kv_groups: tuple[KvLayers, ...]
