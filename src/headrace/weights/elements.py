"""ElementType: how the numbers of one tensor lie in a model file."""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum
from math import prod


class ElementType(Enum):
    """A storage type: `group` elements along the last axis take `group_bytes` bytes.

    Types that headrace has no kernels for are listed too, so that a file that holds them can still be bounds-checked
    and the error can name them.
    """

    F32 = ("F32", 1, 4)
    F16 = ("F16", 1, 2)
    BF16 = ("BF16", 1, 2)
    Q4_0 = ("Q4_0", 32, 18)
    Q4_1 = ("Q4_1", 32, 20)
    Q8_0 = ("Q8_0", 32, 34)

    F64 = ("F64", 1, 8)
    F8_E4M3 = ("F8_E4M3", 1, 1)
    F8_E5M2 = ("F8_E5M2", 1, 1)
    F8_E8M0 = ("F8_E8M0", 1, 1)
    BOOL = ("BOOL", 1, 1)
    U8 = ("U8", 1, 1)
    I8 = ("I8", 1, 1)
    U16 = ("U16", 1, 2)
    I16 = ("I16", 1, 2)
    U32 = ("U32", 1, 4)
    I32 = ("I32", 1, 4)
    U64 = ("U64", 1, 8)
    I64 = ("I64", 1, 8)
    Q5_0 = ("Q5_0", 32, 22)
    Q5_1 = ("Q5_1", 32, 24)
    Q8_1 = ("Q8_1", 32, 40)
    Q2_K = ("Q2_K", 256, 84)
    Q3_K = ("Q3_K", 256, 110)
    Q4_K = ("Q4_K", 256, 144)
    Q5_K = ("Q5_K", 256, 176)
    Q6_K = ("Q6_K", 256, 210)
    Q8_K = ("Q8_K", 256, 292)
    IQ2_XXS = ("IQ2_XXS", 256, 66)
    IQ2_XS = ("IQ2_XS", 256, 74)
    IQ3_XXS = ("IQ3_XXS", 256, 98)
    IQ1_S = ("IQ1_S", 256, 50)
    IQ4_NL = ("IQ4_NL", 32, 18)
    IQ3_S = ("IQ3_S", 256, 110)
    IQ2_S = ("IQ2_S", 256, 82)
    IQ4_XS = ("IQ4_XS", 256, 136)
    IQ1_M = ("IQ1_M", 256, 56)
    TQ1_0 = ("TQ1_0", 256, 54)
    TQ2_0 = ("TQ2_0", 256, 66)
    MXFP4 = ("MXFP4", 32, 17)
    NVFP4 = ("NVFP4", 64, 36)
    Q1_0 = ("Q1_0", 128, 18)

    @property
    def label(self) -> str:
        """The name that the file formats' own documents use."""
        return self.value[0]

    @property
    def group(self) -> int:
        return self.value[1]

    @property
    def group_bytes(self) -> int:
        return self.value[2]

    def nbytes(self, shape: Sequence[int]) -> int | None:
        """Bytes of a tensor of this shape, last axis contiguous; None when that axis is no multiple of the group."""
        if not shape:
            return self.group_bytes if self.group == 1 else None
        if shape[-1] % self.group:
            return None
        return prod(shape) // self.group * self.group_bytes


LOADABLE = (
    ElementType.Q4_0,
    ElementType.Q4_1,
    ElementType.Q8_0,
    ElementType.F16,
    ElementType.BF16,
    ElementType.F32,
)
"""What dequantize() and pack() understand."""

_E = ElementType
GGML_TYPES: dict[int, ElementType] = {
    **{0: _E.F32, 1: _E.F16, 2: _E.Q4_0, 3: _E.Q4_1, 6: _E.Q5_0, 7: _E.Q5_1, 8: _E.Q8_0, 9: _E.Q8_1},
    **{10: _E.Q2_K, 11: _E.Q3_K, 12: _E.Q4_K, 13: _E.Q5_K, 14: _E.Q6_K, 15: _E.Q8_K, 16: _E.IQ2_XXS, 17: _E.IQ2_XS},
    **{18: _E.IQ3_XXS, 19: _E.IQ1_S, 20: _E.IQ4_NL, 21: _E.IQ3_S, 22: _E.IQ2_S, 23: _E.IQ4_XS, 24: _E.I8, 25: _E.I16},
    **{26: _E.I32, 27: _E.I64, 28: _E.F64, 29: _E.IQ1_M, 30: _E.BF16, 34: _E.TQ1_0, 35: _E.TQ2_0, 39: _E.MXFP4},
    **{40: _E.NVFP4, 41: _E.Q1_0},
}
"""Type ids of GGUF tensors (ggml.h, enum ggml_type)."""

SAFETENSORS_TYPES: dict[str, ElementType] = {
    **{t.label: t for t in (_E.F64, _E.F32, _E.F16, _E.BF16, _E.F8_E5M2, _E.F8_E8M0, _E.BOOL)},
    **{t.label: t for t in (_E.U8, _E.I8, _E.U16, _E.I16, _E.U32, _E.I32, _E.U64, _E.I64)},
    "F8_E4M3": _E.F8_E4M3,
}
"""dtype names of safetensors headers."""
