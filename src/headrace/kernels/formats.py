"""Packed weight formats and their numbers in native/include/plan.h."""

from __future__ import annotations

FORMAT_NUMBERS = {"q4": 0, "q8": 1, "f16": 2, "bf16": 3, "f32": 4}
SOURCE_NUMBERS = {"q4_0": 0, "q4_1": 1, "q8_0": 2, "f16": 3, "bf16": 4, "f32": 5}
PACKED_FORMAT_OF_SOURCE = {"q4_0": "q4", "q4_1": "q4", "q8_0": "q8", "f16": "f16", "bf16": "bf16", "f32": "f32"}
"""The packed format that holds a source's values without loss."""

GROUP = 32
LANES = 16
_BLOCK_BYTES = {"q4": (GROUP, 320), "q8": (GROUP, 544), "f16": (1, 32), "bf16": (1, 32), "f32": (1, 64)}

ARITHMETIC = {
    "q4": {"class": "int8·group", "group": GROUP, "chains": 1, "minimum": "after scale"},
    "q8": {"class": "int8·group", "group": GROUP, "chains": 1},
    "f16": {"class": "f32", "chains": 1},
    "bf16": {"class": "f32", "chains": 1},
    "f32": {"class": "f32", "chains": 1},
}
"""The arithmetic class that each format fixes (NUMERICS.md, Linear)."""


def packed_bytes(packed_format: str, num_outputs: int, num_inputs: int) -> int:
    """Bytes of a packed matrix: ceil(num_outputs / 16) column blocks over num_inputs."""
    group, block_bytes = _BLOCK_BYTES[packed_format]
    return -(-num_outputs // LANES) * (num_inputs // group) * block_bytes
