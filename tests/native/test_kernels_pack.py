"""Packing from ggml blocks and plain elements, against an unpacker in NumPy; rotary tables."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace import _native

from .kernel_reference import FORMAT_OF_SOURCE, SOURCES, Weight, pack, pack_pair, random_weight, same_bits, unpack

EVERY_SOURCE = sorted(SOURCES)
quick = settings(max_examples=25, deadline=None)
seeds = st.integers(0, 2**32 - 1)


def k_of(source: str, draw: int) -> int:
    return draw * 32 if source.startswith("q") else draw * 7


@pytest.mark.parametrize("source", EVERY_SOURCE)
@quick
@given(seed=seeds, n=st.integers(1, 600), draw=st.integers(1, 5), reorder=st.booleans(), threads=st.integers(1, 3))
def test_packing_moves_every_value_and_zeroes_the_padding(source, seed, n, draw, reorder, threads):
    rng = np.random.default_rng(seed)
    k = k_of(source, draw)
    weight = random_weight(rng, source, n, k)
    order = rng.permutation(n) if reorder else None
    values = unpack(FORMAT_OF_SOURCE[source], pack(weight, order, threads), n, k)
    assert np.array_equal(values[:n], weight.values if order is None else weight.values[order])
    assert not values[n:].any()


@pytest.mark.parametrize("source", EVERY_SOURCE)
def test_gate_and_up_take_alternating_blocks(source):
    rng = np.random.default_rng(1)
    n, k = 40, k_of(source, 2)
    gate, up = (random_weight(rng, source, n, k) for _ in range(2))
    blocks = unpack(FORMAT_OF_SOURCE[source], pack_pair(gate, up), 96, k).reshape(3, 2, 16, k)
    assert np.array_equal(blocks[:, 0].reshape(48, k)[:n], gate.values)
    assert np.array_equal(blocks[:, 1].reshape(48, k)[:n], up.values)


def test_every_finite_q4_0_scale_gets_its_exact_minimum_or_is_refused():
    scales = np.arange(2**16, dtype=np.uint16).view(np.float16)
    scales = scales[np.isfinite(scales)]
    exact = np.abs(scales.astype(np.float64) * 8) <= np.finfo(np.float16).max
    raw = np.zeros((exact.sum(), 18), np.uint8)
    raw[:, :2] = scales[exact].view(np.uint8).reshape(-1, 2)
    weight = Weight("q4_0", raw, np.repeat(scales[exact].astype(np.float64)[:, None] * -8, 32, axis=1))
    assert np.array_equal(unpack("q4", pack(weight), len(raw), 32)[: len(raw)], weight.values)
    for scale in scales[~exact][::50]:
        block = np.zeros(18, np.uint8)
        block[:2] = np.array([scale]).view(np.uint8)
        packed = np.zeros(320, np.uint8)
        assert not _native.pack(SOURCES["q4_0"], block.ctypes.data, None, 1, 32, packed.ctypes.data)


def test_packing_refuses_sizes_and_orders_that_do_not_fit():
    raw, packed = np.zeros(34 * 2, np.uint8), np.zeros(544, np.uint8)
    good = [SOURCES["q8_0"], raw.ctypes.data, None, 2, 32, packed.ctypes.data]
    assert _native.pack(*good)
    for at, wrong in (
        (0, 6),
        (0, -1),
        (1, 0),
        (2, np.array([0, 2])),
        (2, np.array([-1, 0])),
        (2, np.array([0])),
        (3, 0),
        (4, 33),
        (5, 0),
    ):
        with pytest.raises(ValueError, match=r"."):
            _native.pack(*[wrong if i == at else value for i, value in enumerate(good)])


def test_rotary_tables_are_cosine_and_sine_to_the_last_float_bit():
    inv_freq = 1.0 / 10000.0 ** (np.arange(32) / 32)
    table = _native.rope_table(inv_freq, 4096, 1.0)
    angles = np.arange(4096)[:, None] * inv_freq
    assert table.shape == (4096, 32, 2)
    wanted = np.stack([np.cos(angles), np.sin(angles)], axis=2)
    assert np.all(np.abs(table - wanted) <= np.spacing(np.abs(wanted).astype(np.float32)))
    assert np.mean(table == wanted.astype(np.float32)) > 0.9999
    assert same_bits(_native.rope_table(inv_freq, 4096, 0.5), table / 2)
    far = _native.rope_table(np.array([1.0]), 2**20, 1.0)[-4096:, 0]
    last = np.arange(2**20 - 4096, 2**20)
    assert np.allclose(far, np.stack([np.cos(last), np.sin(last)], axis=1), atol=1e-7, rtol=0)


def test_rotary_tables_refuse_frequencies_out_of_range():
    for bad in (np.array([]), np.array([-1.0]), np.array([np.nan]), np.array([1e9])):
        with pytest.raises(ValueError, match="inv_freq"):
            _native.rope_table(bad, 4, 1.0)
    with pytest.raises(ValueError, match="max_len"):
        _native.rope_table(np.array([1.0]), 0, 1.0)
