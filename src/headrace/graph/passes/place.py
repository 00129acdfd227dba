"""place: one arena for all values, offsets from liveness, known in bytes before a token is run."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from headrace.graph.ir import Graph, Rows

ALIGNMENT_BYTES = 64
ELEMENT_BYTES = 4


@dataclass(frozen=True, slots=True)
class Placement:
    """Byte offset of every value in the arena, and the arena's size."""

    offsets: Mapping[int, int]
    arena_bytes: int


def place(graph: Graph, num_rows: Mapping[Rows, int]) -> Placement:
    """First fit by first use. Two values whose lives overlap never share a byte; lives end with the last touch."""
    lives = _lives(graph)
    placed: list[tuple[int, int, int]] = []  # (value, begin, end) in bytes
    offsets: dict[int, int] = {}
    for value in sorted(lives, key=lambda v: lives[v]):
        meta = graph.values[value]
        size = _align(num_rows[meta.rows] * meta.width * ELEMENT_BYTES)
        taken = sorted((b, e) for other, b, e in placed if _overlap(lives[value], lives[other]))
        offset = 0
        for begin, end in taken:
            if offset + size <= begin:
                break
            offset = max(offset, end)
        offsets[value] = offset
        placed.append((value, offset, offset + size))
    return Placement(offsets, max((e for _, _, e in placed), default=0))


def _lives(graph: Graph) -> dict[int, tuple[int, int]]:
    lives: dict[int, tuple[int, int]] = {}
    for i, node in enumerate(graph.nodes):
        for view in (*node.inputs, *([node.output] if node.output else [])):
            first, _ = lives.get(view.value, (i, i))
            lives[view.value] = (first, i)
    return lives


def _overlap(a: tuple[int, int], b: tuple[int, int]) -> bool:
    return a[0] <= b[1] and b[0] <= a[1]


def _align(size_bytes: int) -> int:
    return -(-size_bytes // ALIGNMENT_BYTES) * ALIGNMENT_BYTES
