"""Norms, rotary embedding, elementwise kernels and the sampler's pieces."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace import _native

from .kernel_reference import ISAS, each_isa_agrees, same_bits

quick = settings(max_examples=40, deadline=None)
seeds = st.integers(0, 2**32 - 1)
lengths = st.one_of(st.integers(1, 70), st.integers(1000, 3000))


def normal(seed: int, *shape: int) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


@quick
@given(seed=seeds, n=lengths)
def test_rms_norm(seed, n):
    x, weight = normal(seed, 2, n)
    got = each_isa_agrees(_native.op_rms_norm(isa, x, weight, 1e-5) for isa in ISAS)
    wide = x.astype(np.float64)
    assert np.allclose(got, wide / np.sqrt(np.mean(wide**2) + 1e-5) * weight, rtol=1e-5, atol=1e-6)


@quick
@given(seed=seeds, head_dim=st.integers(2, 130), data=st.data())
def test_rope_turns_pairs_of_halves_and_leaves_the_rest(seed, head_dim, data):
    half = data.draw(st.integers(1, head_dim // 2))
    x = normal(seed, head_dim)
    angles = normal(seed + 1, half).astype(np.float64) * 3
    table = np.stack([np.cos(angles), np.sin(angles)], axis=1).astype(np.float32)
    got = each_isa_agrees(_native.op_rope(isa, x, table.ravel()) for isa in ISAS)
    pairs = (x[:half] + 1j * x[half : 2 * half]) * (table[:, 0] + 1j * table[:, 1])
    assert np.allclose(got, np.concatenate([pairs.real, pairs.imag, x[2 * half :]]), rtol=1e-5, atol=1e-6)
    assert same_bits(got[2 * half :], x[2 * half :])


@quick
@given(seed=seeds, n=lengths, spread=st.sampled_from([0.1, 5.0, 60.0]))
def test_silu_mul(seed, n, spread):
    gate, up = normal(seed, 2, n)
    gate *= spread
    got = each_isa_agrees(_native.op_silu_mul(isa, gate, up) for isa in ISAS)
    wide = gate.astype(np.float64)
    assert np.allclose(got, wide / (1 + np.exp(-wide)) * up, rtol=1e-6, atol=1e-35)


def test_silu_of_special_values():
    gate = np.array([0.0, -0.0, 200.0, -200.0, np.inf, np.nan], np.float32)
    got = each_isa_agrees(_native.op_silu_mul(isa, gate[:5], np.ones(5, np.float32)) for isa in ISAS)
    assert np.array_equal(got, [0, 0, 200, 0, np.inf])
    assert all(np.isnan(_native.op_silu_mul(isa, gate[5:], np.ones(1, np.float32)))[0] for isa in ISAS)


@quick
@given(seed=seeds, n=lengths)
def test_add(seed, n):
    a, b = normal(seed, 2, n)
    assert same_bits(each_isa_agrees(_native.op_add(isa, a, b) for isa in ISAS), a + b)


@pytest.mark.parametrize("isa", ISAS)
@quick
@given(seed=seeds, n=lengths, levels=st.integers(1, 50))
def test_argmax_takes_the_lowest_index_and_never_nan(isa, seed, n, levels):
    rng = np.random.default_rng(seed)
    x = rng.integers(0, levels, n).astype(np.float32)
    x[rng.random(n) < 0.2] = np.nan
    x[rng.random(n) < 0.2] = -np.inf
    wanted = 0 if np.isnan(x).all() else int(np.nanargmax(x))
    assert _native.op_argmax(isa, x) == wanted


@quick
@given(seed=seeds, n=lengths, spread=st.sampled_from([0.0, 1.0, 100.0]), shift=st.sampled_from([-1e4, 0.0, 1e4]))
def test_log_sum_exp(seed, n, spread, shift):
    x = normal(seed, n) * np.float32(spread) + np.float32(shift)
    got = each_isa_agrees(np.array([_native.op_log_sum_exp(isa, x)], np.float32) for isa in ISAS)[0]
    wide = x.astype(np.float64)
    wanted = wide.max() + np.log(np.exp(wide - wide.max()).sum())
    assert got == pytest.approx(wanted, rel=1e-6, abs=2e-6)


@pytest.mark.parametrize("isa", ISAS)
def test_log_sum_exp_of_special_values(isa):
    lowest = np.full(40, -np.inf, np.float32)
    assert _native.op_log_sum_exp(isa, lowest) == -np.inf
    assert _native.op_log_sum_exp(isa, np.append(lowest, np.float32(3))) == 3.0
    assert np.isnan(_native.op_log_sum_exp(isa, np.append(lowest, np.float32(np.nan))))
    assert np.isnan(_native.op_log_sum_exp(isa, np.array([1, np.nan], np.float32)))


def mix64(x: int) -> int:
    x = ((x ^ x >> 30) * 0xBF58476D1CE4E5B9) % 2**64
    x = ((x ^ x >> 27) * 0x94D049BB133111EB) % 2**64
    return x ^ x >> 31


def noise(seed: int, sample_index: int, position: int, ids: np.ndarray) -> np.ndarray:
    """The definition in native/kernels/noise.h, in float64."""
    key = mix64(mix64((seed + 0x9E3779B97F4A7C15) % 2**64) ^ (sample_index << 32 | position))
    h = ids.astype(np.uint32)
    for half in (key % 2**32, key >> 32):
        h = h ^ np.uint32(half)
        for shift, factor in ((17, 0xED5AD4BB), (11, 0xAC4C1B51), (15, 0x31848BAB)):
            h = (h ^ h >> np.uint32(shift)) * np.uint32(factor)
        h = h ^ h >> np.uint32(14)
    return -np.log(-np.log((h + 0.5) / 2**32))


@quick
@given(seed=st.integers(0, 2**64 - 1), index=st.integers(0, 2**32 - 1), position=st.integers(0, 2**32 - 1), n=lengths)
def test_noise_is_the_documented_hash(seed, index, position, n):
    got = each_isa_agrees(_native.op_gumbel(isa, seed, index, position, None, n) for isa in ISAS)
    assert np.allclose(got, noise(seed, index, position, np.arange(n)), rtol=1e-5, atol=1e-5)
    ids = np.random.default_rng(seed).permutation(n).astype(np.int32)
    listed = each_isa_agrees(_native.op_gumbel(isa, seed, index, position, ids, n) for isa in ISAS)
    assert same_bits(listed, got[ids])


def test_noise_keeps_its_precision_in_both_tails():
    n = 2_000_000
    got = _native.op_gumbel(ISAS[0], 1, 2, 3, None, n)
    wanted = noise(1, 2, 3, np.arange(n))
    assert wanted.max() > 12 and wanted.min() < -2.5
    assert np.all(np.abs(got - wanted) <= 1e-5 * np.maximum(1, np.abs(wanted)))
    assert got.mean() == pytest.approx(np.euler_gamma, abs=0.005)
    assert got.std() == pytest.approx(np.pi / np.sqrt(6), abs=0.005)


def test_seeds_samples_and_positions_give_unrelated_noise():
    base = _native.op_gumbel(ISAS[0], 0, 0, 0, None, 20000)
    for other in ((1, 0, 0), (0, 1, 0), (0, 0, 1), (2**32, 0, 0)):
        assert abs(np.corrcoef(base, _native.op_gumbel(ISAS[0], *other, None, 20000))[0, 1]) < 0.03
