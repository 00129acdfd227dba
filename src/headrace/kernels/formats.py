"""The arithmetic that each packed weight format fixes, and the numbers of the packer's sources."""

from __future__ import annotations

from headrace.weights.elements import ElementType
from headrace.weights.packed import GROUP, PackedFormat

SOURCE_NUMBERS = {
    ElementType.Q4_0: 0,
    ElementType.Q4_1: 1,
    ElementType.Q8_0: 2,
    ElementType.F16: 3,
    ElementType.BF16: 4,
    ElementType.F32: 5,
}
"""`Source` in native/include/kernels.h."""

INTEGER_FORMATS = frozenset({PackedFormat.Q4, PackedFormat.Q8})
"""Formats whose matmul quantises the activations."""

ARITHMETIC = {
    PackedFormat.Q4: {"class": "int8·group", "group": GROUP, "chains": 1, "minimum": "after scale"},
    PackedFormat.Q8: {"class": "int8·group", "group": GROUP, "chains": 1},
    PackedFormat.F16: {"class": "f32", "chains": 1},
    PackedFormat.BF16: {"class": "f32", "chains": 1},
    PackedFormat.F32: {"class": "f32", "chains": 1},
}
"""The arithmetic class of each format (NUMERICS: Linear)."""
