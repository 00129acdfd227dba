"""Paths that the toy model does not take: shared preparation, in-place calls, bias, and the unfused ops."""

from __future__ import annotations

import numpy as np
import pytest

from headrace import _native
from headrace.runner import step_header as sh
from tests.native.toy_plan import (
    BLOCK_SIZE,
    CALL_DTYPE,
    EPS,
    F32,
    FORMAT_F32,
    LINEAR,
    PROMPT,
    RMS_NORM,
    ToyModel,
    admit,
    pack_f32,
    prefill,
)

ROPE, KV_STORE, SILU_MUL_OP, ADD = 4, 5, 7, 8
OWN_PREPARE_VALUES = 8192  # native/src/ops.h: above this, rows are prepared once for all threads


def crowd(num_rows: int) -> sh.Words:
    """Every row prefills its own rotation of a 40-token prompt."""
    sections: dict[str, tuple[object, ...]] = {"token_writes": (), "row_params": (), "table_writes": ()}
    for row in range(num_rows):
        tokens = [(t + row) % 130 for t in (PROMPT * 2)]
        for name, records in admit(row, tokens, [1 + 3 * row, 2 + 3 * row, 3 + 3 * row]).items():
            sections[name] += records  # type: ignore[operator]
    return sh.encode_header(
        sh.StepHeader(
            0,
            entries=tuple(sh.Entry(row, 0, 40) for row in range(num_rows)),
            logits_rows=tuple(sh.LogitsRow(row, 39, sh.KIND_SAMPLE) for row in range(num_rows)),
            **sections,  # type: ignore[arg-type]
        )
    )


@pytest.mark.parametrize("num_threads", [1, 2, 3, 5])
def test_rows_prepared_together_have_the_bits_of_rows_prepared_alone(num_threads: int) -> None:
    toy = ToyModel(num_threads=num_threads, max_tokens=160)
    assert 160 * toy.x.shape[1] > OWN_PREPARE_VALUES > 40 * toy.x.shape[1]
    toy.executor.step(prefill(0, PROMPT * 2, [20, 21, 22]))
    alone = toy.logits[0].tobytes()
    toy.executor.step(crowd(4))
    assert toy.logits[0].tobytes() == alone
    for row in range(4):
        expected = toy.reference_logits([(t + row) % 130 for t in PROMPT * 2])[-1]
        assert np.abs(toy.logits[row] - expected).max() < 2e-5 * np.ptp(expected)
    toy.executor.close()


class OneCall:
    """An executor whose plan is the given calls over `num_tokens` known tokens of row 0."""

    def __init__(self, calls: list[tuple[int, tuple[int, ...], tuple[int, ...], float]], num_threads: int) -> None:
        self.plan = np.zeros(len(calls), CALL_DTYPE)
        for record, (op, ptr, dim, scalar) in zip(self.plan, calls, strict=True):
            record["op"], record["scalar"][0] = op, scalar
            record["ptr"][: len(ptr)], record["dim"][: len(dim)] = ptr, dim
        self.executor = _native.Executor("", num_threads)

    def run(self, num_tokens: int, kv: F32 | None = None, strides: tuple[int, ...] = ()) -> None:
        groups = [] if kv is None else [4]
        self.executor.set_rows(1, 64, 64, 1, 0, len(groups), groups)
        if kv is not None:
            self.executor.set_kv_group(0, kv.ctypes.data, len(kv), BLOCK_SIZE, *strides)
        self.executor.load_plan(self.plan, [0])
        table = () if kv is None else (sh.TableWrite(0, 0, 0, (3, 1, 4, 2)),)
        header = sh.StepHeader(
            0,
            entries=(sh.Entry(0, 0, num_tokens),),
            token_writes=(sh.TokenWrite(0, 0, (0,) * num_tokens),),
            table_writes=table,
        )
        self.executor.step(sh.encode_header(header))
        self.executor.close()


@pytest.fixture
def rng() -> np.random.Generator:
    return np.random.default_rng(3)


def normal(rng: np.random.Generator, *shape: int) -> F32:
    return rng.standard_normal(shape).astype(np.float32)


@pytest.mark.parametrize("num_tokens", [1, 40])
@pytest.mark.parametrize("num_threads", [1, 2, 5])
def test_a_linear_adds_its_bias_also_when_it_works_in_place(
    rng: np.random.Generator, num_threads: int, num_tokens: int
) -> None:
    x, weight, bias = normal(rng, num_tokens, 48), normal(rng, 48, 48), normal(rng, 48)
    packed, expected = pack_f32(weight), x.astype(np.float64) @ weight.T + bias
    ptr = (x.ctypes.data, x.ctypes.data, packed.ctypes.data, 0, bias.ctypes.data)
    OneCall([(LINEAR, ptr, (48, 48, FORMAT_F32, 48, 48, 1), 0.0)], num_threads).run(num_tokens)
    assert np.abs(x - expected).max() < 1e-4


@pytest.mark.parametrize("num_threads", [1, 3])
def test_elementwise_ops_honour_their_strides(rng: np.random.Generator, num_threads: int) -> None:
    a, b = normal(rng, 20, 32), normal(rng, 20, 48)
    total, product = np.zeros((20, 24), np.float32), np.zeros((20, 40), np.float32)
    calls = [
        (ADD, (a.ctypes.data, b.ctypes.data, total.ctypes.data), (24, 32, 48, 24), 0.0),
        (SILU_MUL_OP, (a.ctypes.data, b.ctypes.data, product.ctypes.data), (16, 32, 48, 40), 0.0),
    ]
    OneCall(calls, num_threads).run(20)
    assert np.array_equal(total, a[:, :24] + b[:, :24])
    gate = a[:, :16].astype(np.float64)
    assert np.abs(product[:, :16] - gate / (1 + np.exp(-gate)) * b[:, :16]).max() < 1e-5
    assert not product[:, 16:].any()


@pytest.mark.parametrize("num_threads", [1, 3])
def test_a_norm_takes_each_vector_of_a_row_by_itself(rng: np.random.Generator, num_threads: int) -> None:
    x, weight, out = normal(rng, 20, 64), normal(rng, 16), np.zeros((20, 64), np.float32)
    ptr = (x.ctypes.data, out.ctypes.data, weight.ctypes.data)
    OneCall([(RMS_NORM, ptr, (16, 4, 64, 64), EPS)], num_threads).run(20)
    heads = x.astype(np.float64).reshape(20, 4, 16)
    expected = heads / np.sqrt((heads**2).mean(-1, keepdims=True) + EPS) * weight
    assert np.abs(out - expected.reshape(20, 64)).max() < 1e-5


@pytest.mark.parametrize("num_threads", [1, 3])
def test_rope_rotates_the_first_dimensions_of_each_head_by_position(rng: np.random.Generator, num_threads: int) -> None:
    x, angles = normal(rng, 20, 2 * 32), np.outer(np.arange(64), 10.0 ** -np.arange(8.0))
    table = np.stack([np.cos(angles), np.sin(angles)], axis=-1).astype(np.float32)
    heads = x.astype(np.float64).reshape(20, 2, 32)
    low, high, rest = heads[..., :8], heads[..., 8:16], heads[..., 16:]
    cos, sin = (table[:20, None, :, i].astype(np.float64) for i in (0, 1))
    expected = np.concatenate([low * cos - high * sin, high * cos + low * sin, rest], axis=-1)
    OneCall([(ROPE, (x.ctypes.data, table.ctypes.data), (2, 32, 16, 64), 0.0)], num_threads).run(20)
    assert np.abs(x.reshape(20, 2, 32) - expected).max() < 1e-5


@pytest.mark.parametrize("num_threads", [1, 3])
def test_kv_store_puts_each_token_into_its_rows_blocks(rng: np.random.Generator, num_threads: int) -> None:
    heads, dim = 2, 16
    k, v, tile = normal(rng, 40, heads * dim), normal(rng, 40, heads * dim), BLOCK_SIZE * dim
    kv = np.zeros((5, 2, heads, 2, tile), np.float32)  # [block, layer, head, K or V, tile]
    strides = (kv[0].size, kv[0, 0].size, kv[0, 0, 0].size, tile)
    width = heads * dim
    OneCall([(KV_STORE, (k.ctypes.data, v.ctypes.data), (0, 1, heads, dim, width, width), 0.0)], num_threads).run(
        40, kv, strides
    )
    for token in range(40):
        block, offset = (3, 1, 4, 2)[token // 16], token % 16
        for head in range(heads):
            stored_k = kv[block, 1, head, 0].reshape(dim, 16)[:, offset]
            stored_v = kv[block, 1, head, 1].reshape(16, dim)[offset]
            assert np.array_equal(stored_k, k[token, head * dim : head * dim + dim])
            assert np.array_equal(stored_v, v[token, head * dim : head * dim + dim])
    assert not kv[0].any() and not kv[:, 0].any() and not kv[2].any()


def long_logits(num_threads: int, chunks: list[int], isa: str = "") -> list[bytes]:
    """Logits after a prompt of 600 tokens and after each of three more, computed alone."""
    prompt = [(7 * t) % 130 for t in range(600)]
    toy = ToyModel(num_threads=num_threads, isa=isa, max_model_len=640, max_tokens=600, num_blocks=48)
    sections: dict[str, object] = admit(0, prompt, list(range(3, 43)))
    out, start = [], 0
    for step, size in enumerate([*chunks, 1, 1, 1]):
        end = start + size
        header = sh.StepHeader(
            step,
            entries=(sh.Entry(0, start, size),),
            logits_rows=(sh.LogitsRow(0, size - 1, sh.KIND_SAMPLE),) if end >= len(prompt) else (),
            **sections,  # type: ignore[arg-type]
        )
        toy.executor.step(sh.encode_header(header))
        if end >= len(prompt):
            out.append(toy.logits[0].tobytes())
        start, sections = end, {}
    toy.executor.close()
    return out


@pytest.mark.parametrize("num_threads", [2, 3, 5])
def test_a_history_split_over_threads_gives_the_bits_of_one_thread(num_threads: int) -> None:
    alone = long_logits(1, [600])
    assert len(set(alone)) == 4
    assert long_logits(num_threads, [600]) == alone
    assert long_logits(num_threads, [7, 250, 5, 256, 82]) == alone
    assert long_logits(num_threads, [597, 1, 2]) == alone
