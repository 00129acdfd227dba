"""Packing loses nothing: unpack(pack(x)) is dequantize(x), and the bytes lie where plan.h says."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.core.errors import UnsupportedModelError
from headrace.weights.dequantize import dequantize
from headrace.weights.elements import LOADABLE, ElementType
from headrace.weights.packed import PACKED_FORMATS, PackedFormat, pack, packed_nbytes, unpack


def random_raw(element_type: ElementType, n: int, k: int, seed: int) -> np.ndarray:
    """Random bytes with finite scales, so that values can be compared."""
    rng = np.random.default_rng(seed)
    nbytes = element_type.nbytes((n, k))
    assert nbytes is not None
    raw = rng.integers(0, 256, nbytes, dtype=np.uint8)
    if element_type in (ElementType.F16, ElementType.BF16, ElementType.F32):
        return raw
    blocks = raw.reshape(-1, element_type.group_bytes)
    halves = 2 if element_type is ElementType.Q4_1 else 1
    scales = (rng.standard_normal((len(blocks), halves)) * 0.1).astype(np.float16)
    blocks[:, : 2 * halves] = scales.view(np.uint8)
    return raw


@settings(max_examples=80, deadline=None)
@given(
    element_type=st.sampled_from(LOADABLE),
    n=st.integers(1, 40),
    groups=st.integers(1, 4),
    permute=st.booleans(),
    seed=st.integers(0, 1 << 30),
)
def test_unpacked_equals_dequantized(element_type: ElementType, n: int, groups: int, permute: bool, seed: int) -> None:
    k = groups * 32
    raw = random_raw(element_type, n, k, seed)
    order = np.random.default_rng(seed).permutation(n) if permute else None
    packed = pack(element_type, raw, n, k, row_order=order)
    packed_format = PACKED_FORMATS[element_type]
    assert packed.dtype == np.uint8
    assert packed.nbytes == packed_nbytes(packed_format, n, k)
    wanted = dequantize(element_type, raw, (n, k))
    wanted = wanted if order is None else wanted[order]
    got = unpack(packed_format, packed, n, k)
    np.testing.assert_array_equal(got, wanted)
    if element_type is not ElementType.Q4_0:  # there 0 may come out as -0
        assert got.tobytes() == wanted.tobytes()


def test_q4_bytes_lie_where_the_plan_header_says() -> None:
    raw = random_raw(ElementType.Q4_1, 18, 64, 1)
    packed = pack(ElementType.Q4_1, raw, 18, 64)
    assert packed.nbytes == 2 * 2 * 320
    source = raw.reshape(18, 2, 20)
    for block, group, lane, j, i in ((0, 0, 0, 0, 0), (0, 1, 15, 3, 3), (1, 0, 1, 2, 1)):
        stored = packed[(block * 2 + group) * 320 :][:320]
        blockbytes = source[block * 16 + lane, group]
        nibbles = np.concatenate([blockbytes[4:] & 15, blockbytes[4:] >> 4])
        byte = stored[j * 64 + lane * 4 + i]
        assert (byte & 15, byte >> 4) == (nibbles[8 * j + i], nibbles[8 * j + 4 + i])
        assert stored[256 + 2 * lane : 258 + 2 * lane].tobytes() == blockbytes[:2].tobytes()
        assert stored[288 + 2 * lane : 290 + 2 * lane].tobytes() == blockbytes[2:4].tobytes()
    padding = packed[2 * 320 :].reshape(2, 320)[:, :256].reshape(2, 4, 16, 4)[:, :, 2:]
    assert not padding.any()


def test_q8_bytes_lie_where_the_plan_header_says() -> None:
    raw = random_raw(ElementType.Q8_0, 3, 32, 2)
    packed = pack(ElementType.Q8_0, raw, 3, 32)
    values = raw.reshape(3, 34)[:, 2:].view(np.int8)
    for lane, j, i in ((0, 0, 0), (2, 7, 3), (1, 4, 2)):
        assert int(packed[j * 64 + lane * 4 + i]) == int(values[lane, 4 * j + i]) + 128
    assert packed[512:518].tobytes() == raw.reshape(3, 34)[:, :2].tobytes()


def test_float_elements_lie_lane_by_lane() -> None:
    matrix = np.arange(17 * 3, dtype=np.float32).reshape(17, 3)
    packed = pack(ElementType.F32, matrix.view(np.uint8).reshape(-1), 17, 3).view(np.float32).reshape(2, 3, 16)
    assert packed[0, 2, 5] == matrix[5, 2]
    assert packed[1, 1, 0] == matrix[16, 1]
    assert not packed[1, :, 1:].any()


@pytest.mark.parametrize("scale", [8192.0, -8192.0, float("inf"), float("nan")])
def test_a_q4_0_scale_whose_minimum_overflows_is_refused(scale: float) -> None:
    raw = np.zeros(18, np.uint8)
    raw[:2] = np.array([scale], np.float16).view(np.uint8)
    with pytest.raises(OverflowError, match="minimum is not a finite f16"):
        pack(ElementType.Q4_0, raw, 1, 32)


def test_what_cannot_be_packed_is_refused() -> None:
    with pytest.raises(UnsupportedModelError, match="Q5_K"):
        pack(ElementType.Q5_K, np.zeros(176, np.uint8), 1, 256)
    with pytest.raises(ValueError, match="are not 2 rows"):
        pack(ElementType.F32, np.zeros(4, np.uint8), 2, 1)
    with pytest.raises(ValueError, match="no multiple of the group"):
        packed_nbytes(PackedFormat.Q8, 16, 33)
