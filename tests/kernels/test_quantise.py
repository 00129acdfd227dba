"""Packing that rounds: bounds on every group, the plain choices as yardsticks, refusals."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace import _native
from tests.native.kernel_reference import FORMATS, SOURCES, random_weight, unpack

quick = settings(max_examples=25, deadline=None)
seeds = st.integers(0, 2**32 - 1)
FLOAT_DTYPES = {"f32": "<f4", "f16": "<f2", "bf16": "<u2"}


def rounded_to(target: str, source: str, raw: np.ndarray, n: int, k: int, threads: int = 1) -> np.ndarray:
    """float64 [n, k] as read back; AssertionError when packing refuses."""
    packed = np.zeros(_native.packed_bytes(FORMATS[target], n, k), np.uint8)
    raw = np.ascontiguousarray(raw)
    assert _native.pack(
        SOURCES[source], raw.ctypes.data, None, n, k, packed.ctypes.data, num_threads=threads, target=FORMATS[target]
    )
    values = unpack(target, packed, n, k)
    assert not values[n:].any()
    return values[:n]


def matrix(seed: int, n: int, groups: int) -> np.ndarray:
    rng = np.random.default_rng(seed)
    scale = rng.choice([1e-4, 0.02, 1.0, 300.0], (n, groups, 1))
    offset = rng.choice([0.0, 0.0, 1.0, -5.0], (n, groups, 1))
    values = (rng.standard_normal((n, groups, 32)) + offset) * scale
    values[rng.random((n, groups)) < 0.1] = 0.0
    return values.astype(np.float32).reshape(n, groups * 32)


def group_errors(x: np.ndarray, got: np.ndarray) -> np.ndarray:
    return ((x.astype(np.float64) - got) ** 2).reshape(len(x), -1, 32).sum(axis=-1)


@quick
@given(seed=seeds, n=st.integers(1, 40), groups=st.integers(1, 5), threads=st.integers(1, 3))
def test_q8_is_within_half_a_step_of_every_value(seed, n, groups, threads):
    x = matrix(seed, n, groups)
    got = rounded_to("q8", "f32", x, n, groups * 32, threads)
    step = np.abs(x).reshape(n, groups, 32).max(axis=-1, keepdims=True) / 127
    error = np.abs(x - got).reshape(n, groups, 32)
    assert np.all(error <= step * (0.5 + 127 * 2.0**-11) + 127 * 2.0**-25)


@quick
@given(seed=seeds, n=st.integers(1, 40), groups=st.integers(1, 5))
def test_q4_is_no_worse_than_the_range_over_fifteen_steps_in_any_group(seed, n, groups):
    x = matrix(seed, n, groups)
    got = rounded_to("q4", "f32", x, n, groups * 32)
    grouped = x.reshape(n, groups, 32)
    low, high = grouped.min(axis=-1, keepdims=True), grouped.max(axis=-1, keepdims=True)
    scale, minimum = ((high - low) / np.float32(15)).astype(np.float16), low.astype(np.float16)
    scale, minimum = scale.astype(np.float64), minimum.astype(np.float64)
    steps = np.divide(grouped - minimum, scale, out=np.zeros(grouped.shape), where=scale > 0)
    plain = (np.clip(np.rint(steps), 0, 15) * scale + minimum).reshape(x.shape)
    allowed = group_errors(x, plain)
    assert np.all(group_errors(x, got) <= allowed * (1 + 1e-4) + 1e-12 * np.square(grouped).sum(axis=-1))


def test_q4_errors_on_normal_values_are_well_under_those_of_q4_0():
    x = np.random.default_rng(1).standard_normal((64, 320)).astype(np.float32)
    error = group_errors(x, rounded_to("q4", "f32", x, 64, 320)).sum()
    grouped = x.reshape(64, 10, 32)
    at = np.abs(grouped).argmax(axis=-1)[..., None]
    scale = np.take_along_axis(grouped, at, axis=-1) / -8  # ggml's quantize_row_q4_0
    q4_0 = np.clip(np.floor(grouped / scale + 8.5), 0, 15) * scale - 8 * scale
    assert error < 0.8 * group_errors(x, q4_0.reshape(x.shape)).sum()


@pytest.mark.parametrize("target", ["q4", "q8"])
def test_values_that_the_format_has_exactly_are_kept(target):
    rng = np.random.default_rng(2)
    weight = random_weight(rng, "q8_0" if target == "q8" else "q4_1", 20, 96)
    limit, least = (127, 0) if target == "q8" else (15, 0)
    steps = rng.integers(least, limit + 1, (20, 3, 32))
    steps[..., 0], steps[..., 1] = least, limit  # the whole range is used
    x = (steps * 2.0**-6 - (0.0 if target == "q8" else 0.125)).astype(np.float32).reshape(weight.values.shape)
    assert np.array_equal(rounded_to(target, "f32", x, 20, 96), x)


@pytest.mark.parametrize("source", ["f16", "bf16", "q8_0"])
def test_other_sources_round_as_their_values_in_f32_do(source):
    weight = random_weight(np.random.default_rng(3), source, 37, 96)
    values = weight.values.astype(np.float32)
    assert np.array_equal(rounded_to("q4", source, weight.raw, 37, 96), rounded_to("q4", "f32", values, 37, 96))


def test_bf16_is_the_nearest_with_ties_to_even():
    x = np.random.default_rng(4).integers(0, 2**32, (16, 50), dtype=np.uint64).astype(np.uint32).view(np.float32)
    x[~np.isfinite(x) | (np.abs(x) > 3e38)] = 1.0
    x.view(np.uint32)[0, :4] = [0x3F808000, 0x3F818000, 0x3F808001, 0x80000001]  # two ties, just above one, a subnormal
    bits = x.view(np.uint32)
    wanted = ((bits + 0x7FFF + (bits >> 16 & 1)) >> 16 << 16).view(np.float32)
    assert np.array_equal(rounded_to("bf16", "f32", x, 16, 50), wanted)


@pytest.mark.parametrize("target", ["q4", "q8"])
@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf, 1e38])
def test_a_value_the_format_cannot_hold_is_refused(target, bad):
    x = np.ones((3, 64), np.float32)
    x[2, 33] = bad
    packed = np.zeros(_native.packed_bytes(FORMATS[target], 3, 64), np.uint8)
    assert not _native.pack(SOURCES["f32"], x.ctypes.data, None, 3, 64, packed.ctypes.data, target=FORMATS[target])


@pytest.mark.parametrize(("source", "target"), [("q4_0", "q8"), ("q8_0", "f32"), ("q4_1", "bf16"), ("f16", "f32")])
def test_there_is_no_way_up(source, target):
    raw, packed = np.zeros(4096, np.uint8), np.zeros(8192, np.uint8)
    with pytest.raises(ValueError, match="no way"):
        _native.pack(SOURCES[source], raw.ctypes.data, None, 1, 32, packed.ctypes.data, target=FORMATS[target])
