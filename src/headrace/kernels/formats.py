"""The arithmetic that each packed weight format fixes, and the numbers of the packer's sources."""

from __future__ import annotations

from headrace.weights.elements import ElementType
from headrace.weights.packed import GROUP, PACKED_FORMATS, PackedFormat

SOURCE_NUMBERS = {
    ElementType.Q4_0: 0,
    ElementType.Q4_1: 1,
    ElementType.Q8_0: 2,
    ElementType.F16: 3,
    ElementType.BF16: 4,
    ElementType.F32: 5,
}
"""`Source` in native/include/kernels.h."""

_FLOATS = frozenset({ElementType.F16, ElementType.BF16, ElementType.F32})
_QUANTISED_FROM = {
    PackedFormat.Q4: _FLOATS | {ElementType.Q8_0},
    PackedFormat.Q8: _FLOATS,
    PackedFormat.BF16: _FLOATS,
}
"""Packed format → the types that may be rounded into it, all of more bits or range (`can_pack` of kernels.h)."""

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


def quantised_format(source: ElementType, num_inputs: int, quantization: str) -> PackedFormat:
    """The packed format of a matrix under the option `quantization` (none, q8, q4, bf16).

    A type without a way to that format, and a matrix whose inputs do not fill its groups, keep the format without loss.
    """
    if quantization == "none":
        return PACKED_FORMATS[source]
    target = PackedFormat[quantization.upper()]
    fits = target not in INTEGER_FORMATS or num_inputs % GROUP == 0
    return target if fits and source in _QUANTISED_FROM[target] else PACKED_FORMATS[source]
