"""Matrix products over packed weights: against NumPy, across ISA levels, and whatever company a row has."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace import _native

from .kernel_reference import (
    FORMATS,
    ISAS,
    SOURCES,
    Weight,
    as_prepared,
    each_isa_agrees,
    pack,
    pack_pair,
    quantise,
    random_weight,
    same_bits,
)

EVERY_SOURCE = sorted(SOURCES)
quick = settings(max_examples=25, deadline=None)
seeds = st.integers(0, 2**32 - 1)


def k_of(source: str, draw: int) -> int:
    return draw * 32 if source.startswith("q") else draw * 11


def linear(isa: str, weight: Weight, packed: np.ndarray, x: np.ndarray, **options: object) -> np.ndarray:
    return _native.op_linear(isa, weight.format, packed, x, weight.values.shape[0], **options)


@pytest.mark.parametrize("source", EVERY_SOURCE)
@quick
@given(
    seed=seeds,
    m=st.integers(1, 21),
    n=st.integers(1, 70),
    draw=st.integers(1, 9),
    segments=st.sampled_from([1, 2, 4, 8]),
)
def test_a_product_is_that_of_numpy_and_the_same_bits_on_every_isa(source, seed, m, n, draw, segments):
    rng = np.random.default_rng(seed)
    k = k_of(source, draw)
    weight = random_weight(rng, source, n, k)
    x = (rng.standard_normal((m, k)) * rng.choice([1e-3, 1.0, 50.0], (m, 1))).astype(np.float32)
    packed = pack(weight)
    got = each_isa_agrees(linear(isa, weight, packed, x, k_segments=segments) for isa in ISAS)
    prepared = as_prepared(x, weight.format)
    wanted = prepared @ weight.values.T
    magnitude = np.abs(prepared) @ np.abs(weight.values).T
    if source.startswith("q4"):  # scale * nibble and the minimum cancel: errors scale with each, not with their sum
        magnitude += np.abs(prepared).sum(axis=1, keepdims=True) * 4
    assert np.all(np.abs(got - wanted) <= 2e-6 * magnitude + 1e-30)


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("source", EVERY_SOURCE)
@quick
@given(seed=seeds, m=st.integers(2, 21), n=st.integers(1, 100), data=st.data())
def test_rows_do_not_depend_on_company(isa, source, seed, m, n, data):
    rng = np.random.default_rng(seed)
    weight = random_weight(rng, source, n, k_of(source, 4))
    packed = pack(weight)
    x = rng.standard_normal((m, weight.values.shape[1])).astype(np.float32)
    together = linear(isa, weight, packed, x, k_segments=2)
    alone = np.concatenate([linear(isa, weight, packed, x[i : i + 1], k_segments=2) for i in range(m)])
    assert same_bits(together, alone)
    order = rng.permutation(m)
    assert same_bits(linear(isa, weight, packed, x[order], k_segments=2), together[order])
    num_blocks = -(-n // 16)
    cuts = sorted({0, num_blocks, *data.draw(st.lists(st.integers(0, num_blocks), max_size=4))})
    ranges = list(itertools.pairwise(cuts))
    assert same_bits(linear(isa, weight, packed, x, k_segments=2, blocks=ranges[::-1]), together)


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("source", ["q4_1", "q8_0"])
@pytest.mark.parametrize(
    ("m", "n", "groups", "segments"),
    [(24, 40, 3, 1), (27, 33, 5, 4), (105, 16, 9, 8), (98, 50, 150, 2), (31, 17, 65, 1)],
)
def test_a_row_among_many_has_the_bits_it_has_alone(isa, source, m, n, groups, segments):
    """Enough rows for the unpacked tiles: odd blocks, several panels of rows, more groups than one unpacking."""
    rng = np.random.default_rng(m)
    weight = random_weight(rng, source, n, groups * 32)
    packed = pack(weight)
    x = rng.standard_normal((m, groups * 32)).astype(np.float32)
    together = linear(isa, weight, packed, x, k_segments=segments)
    for i in {0, 1, 11, 12, 23, m // 2, m - 2, m - 1}:
        assert same_bits(linear(isa, weight, packed, x[i : i + 1], k_segments=segments), together[i : i + 1])
    gated = _native.op_linear(isa, weight.format, pack_pair(weight, weight), x, 2 * n, segments, silu_mul=True)
    flat = together.ravel()
    assert same_bits(gated, _native.op_silu_mul(isa, flat, flat).reshape(m, n))


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("source", EVERY_SOURCE)
@pytest.mark.parametrize("segments", [2, 4, 8])
def test_k_segments_are_separate_products_merged_in_a_balanced_tree(isa, source, segments):
    rng = np.random.default_rng(segments)
    k = k_of(source, 19)
    weight = random_weight(rng, source, 40, k)
    x = rng.standard_normal((5, k)).astype(np.float32)
    step = 32 if source.startswith("q") else 1
    row_step = weight.raw.shape[1] * step // k
    parts = []
    for s in range(segments):
        begin, end = (k // step * i // segments for i in (s, s + 1))
        raw = np.ascontiguousarray(weight.raw[:, begin * row_step : end * row_step])
        part = Weight(source, raw, weight.values[:, begin * step : end * step])
        parts.append(linear(isa, part, pack(part), np.ascontiguousarray(x[:, begin * step : end * step])))
    while len(parts) > 1:
        parts = [a + b for a, b in zip(parts[::2], parts[1::2], strict=True)]
    assert same_bits(linear(isa, weight, pack(weight), x, k_segments=segments), parts[0])


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("source", EVERY_SOURCE)
@quick
@given(seed=seeds, m=st.integers(1, 9), n=st.integers(1, 70), segments=st.sampled_from([1, 4]))
def test_gate_and_up_in_alternating_blocks_equal_two_products(isa, source, seed, m, n, segments):
    rng = np.random.default_rng(seed)
    k = k_of(source, 5)
    gate, up = (random_weight(rng, source, n, k) for _ in range(2))
    x = rng.standard_normal((m, k)).astype(np.float32)
    bias = rng.standard_normal(2 * n).astype(np.float32)
    fused = _native.op_linear(isa, gate.format, pack_pair(gate, up), x, 2 * n, segments, bias=bias, silu_mul=True)
    a = linear(isa, gate, pack(gate), x, k_segments=segments, bias=bias[:n].copy())
    b = linear(isa, up, pack(up), x, k_segments=segments, bias=bias[n:].copy())
    assert same_bits(fused, _native.op_silu_mul(isa, a.ravel(), b.ravel()).reshape(m, n))


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("source", EVERY_SOURCE)
def test_norm_bias_and_residual_equal_their_own_ops(isa, source):
    rng = np.random.default_rng(7)
    k, n, m = k_of(source, 6), 37, 6
    weight = random_weight(rng, source, n, k)
    packed = pack(weight)
    x, residual = rng.standard_normal((m, k)).astype(np.float32), rng.standard_normal((m, n)).astype(np.float32)
    norm, bias = rng.standard_normal(k).astype(np.float32), rng.standard_normal(n).astype(np.float32)
    normed = np.stack([_native.op_rms_norm(isa, row, norm, 1e-5) for row in x])
    plain = linear(isa, weight, packed, normed)
    assert same_bits(linear(isa, weight, packed, x, norm_weight=norm, eps=1e-5), plain)
    assert same_bits(linear(isa, weight, packed, normed, bias=bias), plain + bias)
    assert same_bits(linear(isa, weight, packed, normed, bias=bias, residual=residual), residual + (plain + bias))


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("source", EVERY_SOURCE)
def test_extreme_weights_and_activations_do_not_saturate(isa, source):
    """All of one sign at the largest magnitude: where 16-bit accumulators and maddubs would clip."""
    k = 128
    rng = np.random.default_rng(0)
    weight = random_weight(rng, source, 16, k)
    if source.startswith("q"):
        rows = weight.raw.reshape(16, k // 32, -1).copy()
        rows[:, :, -16 if source != "q8_0" else -32 :] = 0xFF if source != "q8_0" else 0x80
        rows[:, :, :2] = np.array([1.0], np.float16).view(np.uint8)
        if source == "q4_1":
            rows[:, :, 2:4] = 0
        value = {"q4_0": 7.0, "q4_1": 15.0, "q8_0": -128.0}[source]
        weight = Weight(source, rows.reshape(16, -1), np.full((16, k), value))
    for sign in (1, -1):
        x = np.full((1, k), sign * 127.0, np.float32)
        got = linear(isa, weight, pack(weight), x)
        assert np.allclose(got, x.astype(np.float64) @ weight.values.T, rtol=1e-5)
        if source.startswith("q"):
            assert np.all(got == sign * 127.0 * value * k)


@pytest.mark.parametrize("source", EVERY_SOURCE)
@quick
@given(seed=seeds, n=st.integers(1, 50), data=st.data())
def test_an_embedding_row_is_the_dequantised_row(source, seed, n, data):
    weight = random_weight(np.random.default_rng(seed), source, n, 96)
    packed = pack(weight)
    token = data.draw(st.integers(0, n - 1))
    got = each_isa_agrees(_native.op_embed_row(isa, weight.format, packed, n, 96, token) for isa in ISAS)
    assert np.array_equal(got, weight.values[token].astype(np.float32))


@pytest.mark.parametrize("packed_format", ["q4", "q8"])
@quick
@given(seed=seeds, groups=st.integers(1, 9), exponent=st.integers(-126, 120))
def test_activations_are_quantised_from_their_own_group(packed_format, seed, groups, exponent):
    rng = np.random.default_rng(seed)
    x = (rng.standard_normal((1, groups * 32)) * 2.0**exponent).astype(np.float32)
    x[0, :32] *= rng.integers(0, 2)
    act = each_isa_agrees(_native.op_prepare_row(isa, FORMATS[packed_format], x[0]) for isa in ISAS)
    q, scale = quantise(x)
    k = groups * 32
    assert np.array_equal(act[:k].view(np.int8).reshape(groups, 32), q[0])
    assert same_bits(act[k : k + 4 * groups].view(np.float32), scale[0])
    sums = q[0].astype(np.int32).sum(axis=1)
    second = act[k + 4 * groups : k + 8 * groups]
    if packed_format == "q4":
        assert np.array_equal(second.view(np.float32), scale[0] * sums.astype(np.float32))
    else:
        assert np.array_equal(second.view(np.int32), -128 * sums)


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("source", EVERY_SOURCE)
def test_a_value_that_is_no_number_reaches_the_outputs_of_its_row_only(isa, bad, source):
    weight = random_weight(np.random.default_rng(3), source, 20, 64)
    packed = pack(weight)
    x = np.random.default_rng(4).standard_normal((9, 64)).astype(np.float32)
    clean = linear(isa, weight, packed, x)
    x[5, 40] = bad
    got = linear(isa, weight, packed, x)
    assert not np.isfinite(got[5]).any()
    assert same_bits(np.delete(got, 5, axis=0), np.delete(clean, 5, axis=0))


def test_sizes_that_do_not_fit_are_refused():
    weight = random_weight(np.random.default_rng(0), "q8_0", 16, 64)
    packed, x = pack(weight), np.zeros((1, 64), np.float32)
    isa = ISAS[0]
    for options in (
        {"bias": np.zeros(15, np.float32)},
        {"norm_weight": np.zeros(63, np.float32)},
        {"residual": np.zeros((1, 15), np.float32)},
        {"k_segments": 3},
        {"blocks": [(0, 2)]},
        {"blocks": [(-1, 1)]},
    ):
        with pytest.raises(ValueError, match=r"must|is"):
            linear(isa, weight, packed, x, **options)
    narrow = x[:, :33].copy()
    for wrong in ((1, packed[:-1], x), (7, packed, x), (1, packed, narrow)):
        with pytest.raises(ValueError, match=r"size|format|multiple"):
            _native.op_linear(isa, *wrong, 16)
    with pytest.raises(ValueError, match="ISA"):
        _native.op_linear("mmx", 1, packed, x, 16)
