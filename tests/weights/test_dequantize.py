"""Dequantisation equals the gguf package's, bit for bit, for every byte pattern."""

from __future__ import annotations

import gguf
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.core.errors import UnsupportedModelError
from headrace.weights.dequantize import dequantize
from headrace.weights.elements import LOADABLE, ElementType


@settings(max_examples=60, deadline=None)
@given(
    element_type=st.sampled_from(LOADABLE),
    rows=st.integers(1, 5),
    groups=st.integers(1, 4),
    seed=st.integers(0, 1 << 30),
)
def test_every_type_equals_the_gguf_package_on_random_bytes(
    element_type: ElementType, rows: int, groups: int, seed: int
) -> None:
    shape = (rows, groups * max(element_type.group, 8))
    nbytes = element_type.nbytes(shape)
    assert nbytes is not None
    raw = np.random.default_rng(seed).integers(0, 256, nbytes, dtype=np.uint8)
    ours = dequantize(element_type, raw, shape)
    with np.errstate(all="ignore"):
        theirs = gguf.dequantize(raw.reshape(rows, -1), gguf.GGMLQuantizationType[element_type.label])
    assert ours.dtype == np.float32
    assert ours.shape == shape
    assert ours.tobytes() == np.ascontiguousarray(theirs, dtype=np.float32).tobytes()


def test_a_view_at_an_odd_address_is_read() -> None:
    buffer = np.zeros(1 + 8 * 4, dtype=np.uint8)
    buffer[1:] = np.arange(8, dtype=np.float32).view(np.uint8)
    assert dequantize(ElementType.F32, buffer[1:], (8,)).tolist() == list(range(8))


def test_types_without_arithmetic_are_named() -> None:
    with pytest.raises(UnsupportedModelError, match=r"type Q6_K are not supported; supported: Q4_0, Q4_1, Q8_0, F16"):
        dequantize(ElementType.Q6_K, np.zeros(210, np.uint8), (256,))


def test_bytes_that_do_not_make_the_shape_are_refused() -> None:
    with pytest.raises(ValueError, match=r"17 bytes do not make shape \(32,\) of Q4_0"):
        dequantize(ElementType.Q4_0, np.zeros(17, np.uint8), (32,))
    with pytest.raises(ValueError, match=r"do not make shape"):
        dequantize(ElementType.Q4_0, np.zeros(18, np.uint8), (31,))
