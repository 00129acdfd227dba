"""The native packer writes the bytes that the NumPy truth writes."""

from __future__ import annotations

import numpy as np
import pytest

from headrace import _native
from headrace.weights.elements import LOADABLE, ElementType
from headrace.weights.packed import PACKED_FORMATS, pack, packed_nbytes
from tests.weights.test_packed import random_raw

SOURCES = (ElementType.Q4_0, ElementType.Q4_1, ElementType.Q8_0, ElementType.F16, ElementType.BF16, ElementType.F32)
"""In the order of `Source` in native/include/kernels.h."""


def test_the_source_numbers_cover_what_is_loadable() -> None:
    assert set(SOURCES) == set(LOADABLE)


@pytest.mark.parametrize("permuted", [False, True])
@pytest.mark.parametrize(("n", "k"), [(1, 32), (16, 64), (37, 96)])
@pytest.mark.parametrize("source", SOURCES)
def test_packed_bytes_are_equal(source: ElementType, n: int, k: int, permuted: bool) -> None:
    raw = random_raw(source, n, k, seed=n * k)
    order = np.random.default_rng(n).permutation(n).astype(np.int64) if permuted else None
    truth = pack(source, raw, n, k, row_order=order)
    assert _native.packed_bytes(int(PACKED_FORMATS[source]), n, k) == packed_nbytes(PACKED_FORMATS[source], n, k)
    out = np.full(truth.nbytes, 0xAB, np.uint8)
    assert _native.pack(SOURCES.index(source), raw.ctypes.data, order, n, k, out.ctypes.data, 0, 1, 2)
    np.testing.assert_array_equal(out, truth)
