"""Attention over paged KV: against float64 NumPy, across ISA levels, block layouts and head groups."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace import _native

from .kernel_reference import ISAS, each_isa_agrees, same_bits

quick = settings(max_examples=25, deadline=None)
seeds = st.integers(0, 2**32 - 1)


@dataclass(frozen=True)
class Paged:
    """One sequence's K and V in blocks: two layers, two KV heads; unused slots hold NaN."""

    memory: np.ndarray
    strides: list[int]
    table: np.ndarray

    def attend(self, isa: str, q: np.ndarray, position: int, **how: object) -> np.ndarray:
        """q [heads, head_dim], or [tokens * heads, head_dim] with num_tokens."""
        return _native.op_attention(isa, self.memory, self.strides, 1, 1, self.table, position, q, 0.125, **how)


def bf16_bits(x: np.ndarray) -> np.ndarray:
    """Rounded to nearest even, by exact arithmetic; for finite values."""
    low = (x.view(np.uint32) & 0xFFFF0000).view(np.float32).astype(np.float64)
    high = ((x.view(np.uint32) & 0xFFFF0000) + 0x10000).view(np.float32).astype(np.float64)
    up = (high - x == x - low) & (x.view(np.uint32) >> 16 & 1 == 1) | (np.abs(high - x) < np.abs(x - low))
    return (x.view(np.uint32) >> 16).astype(np.uint16) + up.astype(np.uint16)


def widened(bits: np.ndarray) -> np.ndarray:
    return (bits.astype(np.uint32) << 16).view(np.float32)


def paged(
    isa: str, k: np.ndarray, v: np.ndarray, block_size: int, rng: np.random.Generator, *, bf16: bool = False
) -> Paged:
    tokens, head_dim = k.shape
    tile = block_size * head_dim
    strides = [block_size, 8 * tile, 4 * tile, 2 * tile, tile]
    used = -(-tokens // block_size)
    table = (rng.permutation(used + 2)[:used] + 1).astype(np.int32)
    memory = np.full((used + 3) * 8 * tile, np.nan, np.float32)
    if bf16:
        memory = np.full(memory.shape, 0x7FC0, np.uint16)
    for t in range(tokens):
        where = (int(table[t // block_size]), t % block_size)
        _native.op_kv_store(isa, memory, strides, 1, 1, *where, k[t], v[t])
    return Paged(memory, strides, table)


def numpy_attention(q: np.ndarray, k: np.ndarray, v: np.ndarray, scale: float = 0.125) -> np.ndarray:
    scores = q.astype(np.float64) @ k.astype(np.float64).T * scale
    weights = np.exp(scores - scores.max(axis=1, keepdims=True))
    return weights @ v.astype(np.float64) / weights.sum(axis=1, keepdims=True)


@quick
@given(
    seed=seeds,
    tokens=st.integers(1, 700),
    heads=st.integers(1, 9),
    head_dim=st.sampled_from([8, 16, 24, 64, 80, 128]),
    block_size=st.sampled_from([16, 32, 48]),
    spread=st.sampled_from([0.0, 1.0, 30.0]),
)
def test_attention_is_that_of_numpy_and_the_same_bits_on_every_isa(seed, tokens, heads, head_dim, block_size, spread):
    rng = np.random.default_rng(seed)
    k, v = rng.standard_normal((2, tokens, head_dim)).astype(np.float32)
    q = (rng.standard_normal((heads, head_dim)) * spread).astype(np.float32)
    cache = paged(ISAS[0], k, v, block_size, rng)
    got = each_isa_agrees(cache.attend(isa, q, tokens - 1) for isa in ISAS)
    assert np.allclose(got, numpy_attention(q, k, v), rtol=1e-4, atol=2e-5)


@pytest.mark.parametrize("isa", ISAS)
@quick
@given(seed=seeds, tokens=st.integers(2, 600), heads=st.integers(2, 7), data=st.data())
def test_a_position_depends_on_its_history_alone(isa, seed, tokens, heads, data):
    """Not on later tokens in the cache, the other heads, or where the blocks lie."""
    rng = np.random.default_rng(seed)
    k, v = rng.standard_normal((2, tokens, 32)).astype(np.float32)
    q = rng.standard_normal((heads, 32)).astype(np.float32)
    position = data.draw(st.integers(0, tokens - 1))
    in_long = paged(isa, k, v, 16, rng).attend(isa, q, position)
    cut = paged(isa, k[: position + 1], v[: position + 1], 64, rng)
    assert same_bits(cut.attend(isa, q, position), in_long)
    for head in range(heads):
        assert same_bits(cut.attend(isa, q[head : head + 1], position), in_long[head : head + 1])


@pytest.mark.parametrize("isa", ISAS)
@quick
@given(
    seed=seeds,
    start=st.integers(0, 600),
    heads=st.integers(1, 5),
    head_dim=st.sampled_from([24, 64, 128]),
    num_tokens=st.integers(1, 16),
    bf16=st.booleans(),
)
def test_query_tokens_in_one_call_have_the_bits_of_one_at_a_time(isa, seed, start, heads, head_dim, num_tokens, bf16):
    """And so have splits computed apart, last first."""
    rng = np.random.default_rng(seed)
    num_tokens = min(num_tokens, 16 - start % 16)
    last = start + num_tokens
    k, v = rng.standard_normal((2, last, head_dim)).astype(np.float32)
    v[-1] = np.inf  # reaches no earlier token
    q = rng.standard_normal((num_tokens * heads, head_dim)).astype(np.float32)
    cache = paged(isa, k, v, 32, rng, bf16=bf16)
    together = cache.attend(isa, q, start, num_tokens=num_tokens)
    for token in range(num_tokens):
        rows = slice(token * heads, (token + 1) * heads)
        assert same_bits(together[rows], cache.attend(isa, q[rows], start + token))
    assert same_bits(together, cache.attend(isa, q, start, num_tokens=num_tokens, in_splits=True))


@quick
@given(seed=seeds, tokens=st.integers(1, 300), heads=st.integers(1, 13), head_dim=st.sampled_from([8, 24, 64]))
def test_bf16_kv_is_rounded_at_write_and_exact_from_there_on(seed, tokens, heads, head_dim):
    rng = np.random.default_rng(seed)
    k, v = rng.standard_normal((2, tokens, head_dim)).astype(np.float32)
    q = rng.standard_normal((heads, head_dim)).astype(np.float32)
    cache = paged(ISAS[0], k, v, 16, rng, bf16=True)
    rounded = paged(ISAS[0], widened(bf16_bits(k)), widened(bf16_bits(v)), 16, rng)
    got = each_isa_agrees(cache.attend(isa, q, tokens - 1) for isa in ISAS)
    assert same_bits(got, rounded.attend(ISAS[0], q, tokens - 1))


@pytest.mark.parametrize("isa", ISAS)
def test_ties_specials_and_subnormals_round_as_they_should(isa):
    bits = np.array([0x3F808000, 0x3F818000, 0x3F808001, 0x3F807FFF, 0x7F7FFFFF, 0x7F800000, 0xFF800000, 0x80000000,
                     0x00008000, 0x00018000, 0x7FFFFFFF, 0x7F800001], np.uint32)  # fmt: skip
    expected = np.array([0x3F80, 0x3F82, 0x3F81, 0x3F80, 0x7F80, 0x7F80, 0xFF80, 0x8000,
                         0x0000, 0x0002, 0x7FFF, 0x7FC0], np.uint16)  # fmt: skip
    memory, n = np.zeros(2 * 16 * len(bits), np.uint16), len(bits)
    x = bits.view(np.float32)
    _native.op_kv_store(isa, memory, [16, len(memory), 0, 0, 16 * n], 0, 0, 0, 5, x, x)
    assert memory[: 16 * n].reshape(n, 16)[:, 5].tolist() == expected.tolist()
    assert memory[16 * n :].reshape(16, n)[5].tolist() == expected.tolist()
    assert np.count_nonzero(memory) == 2 * np.count_nonzero(expected)


@pytest.mark.parametrize("isa", ISAS)
def test_a_single_key_returns_its_value_exactly(isa):
    rng = np.random.default_rng(0)
    k, v = rng.standard_normal((2, 1, 64)).astype(np.float32)
    assert same_bits(paged(isa, k, v, 16, rng).attend(isa, k * 3, 0), v)


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("tokens", [70, 300])
def test_keys_scored_minus_infinity_weigh_nothing(isa, tokens):
    rng = np.random.default_rng(0)
    k, v = rng.standard_normal((2, tokens, 16)).astype(np.float32)
    q = np.zeros((1, 16), np.float32)
    q[0, 0] = 1
    k[:-1, 0] = -np.inf
    k[-1, 0] = 0
    assert same_bits(paged(isa, k, v, 16, rng).attend(isa, q, tokens - 1), v[-1:])


def test_memory_that_is_too_small_is_refused():
    memory, q = np.zeros(16 * 8 * 2 * 4, np.float32), np.zeros((1, 8), np.float32)
    strides, table = [16, 256, 256, 256, 128], np.array([1, 3], np.int32)
    isa = ISAS[0]
    _native.op_attention(isa, memory, strides, 0, 0, table, 31, q, 1.0)
    for layer, head, blocks, position in (
        (1, 0, table, 0),
        (0, 1, table, 0),
        (0, 0, table + 1, 0),
        (0, 0, table - 2, 0),
        (0, 0, table, 32),
    ):
        with pytest.raises(ValueError, match=r"past|short"):
            _native.op_attention(isa, memory, strides, layer, head, blocks, position, q, 1.0)
    for position, num_tokens, match in ((15, 2, "one run"), (0, 17, "a head"), (31, 0, "a head")):
        with pytest.raises(ValueError, match=match):
            _native.op_attention(
                isa, memory, strides, 0, 0, table, position, np.zeros((34, 8), np.float32), 1.0, num_tokens
            )
    with pytest.raises(ValueError, match="float32, or uint16"):
        _native.op_attention(isa, memory.astype(np.int32), strides, 0, 0, table, 31, q, 1.0)
    with pytest.raises(ValueError, match="block or offset"):
        _native.op_kv_store(isa, memory, strides, 0, 0, 4, 0, q[0], q[0])
    with pytest.raises(ValueError, match="block or offset"):
        _native.op_kv_store(isa, memory, strides, 0, 0, 0, 16, q[0], q[0])
