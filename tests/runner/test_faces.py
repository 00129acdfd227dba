"""Native faces against reference faces, fused plans against unfused ones, on whole tiny models."""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from headrace import _native
from headrace.kernels.table import OP_TABLE
from headrace.runner.debug import DebugRunner, logits
from tests.fixtures.tiny_models import SPECS

Make = Callable[..., Path]
IDS = [int(i) for i in np.random.default_rng(7).integers(3, 290, 70)]
CHUNKS = [5, 1, 1, 40, 23]
REPLACEABLE = sorted(set(OP_TABLE) - {"embed", "gate", "sample"})


def distance(a: np.ndarray, b: np.ndarray) -> float:
    """Largest difference in units of b's range."""
    return float(np.abs(a - b).max() / np.ptp(b))


@pytest.mark.parametrize("name", SPECS)
def test_the_reference_executor_agrees_with_the_native_one_on_float_weights(name: str, tiny_hf: Make) -> None:
    native, reference = (
        logits(tiny_hf(name), IDS, CHUNKS, isa=isa, kv_cache_dtype="float32") for isa in (None, "reference")
    )
    assert distance(reference, native) < 2e-5


def test_the_reference_executor_agrees_with_the_native_one_on_bfloat16_kv(tiny_hf: Make) -> None:
    """To a rounding: a value that is nearly halfway may be stored as either neighbour."""
    native, reference = (logits(tiny_hf("qwen3"), IDS, CHUNKS, isa=isa) for isa in (None, "reference"))
    assert distance(reference, native) < 2e-3


@pytest.mark.parametrize("quantisation", ["Q4_0", "Q4_1", "Q8_0"])
def test_the_reference_executor_agrees_with_the_native_one_on_quantised_weights(
    quantisation: str, tiny_gguf: Make
) -> None:
    path = tiny_gguf("llama", quantisation)
    assert distance(logits(path, IDS, CHUNKS, isa="reference"), logits(path, IDS, CHUNKS)) < 0.01


@pytest.mark.parametrize("isa", _native.available_isas())
@pytest.mark.parametrize("name", SPECS)
def test_fusing_changes_no_bit(name: str, isa: str, tiny_hf: Make) -> None:
    path = tiny_hf(name)
    fused, plain = (logits(path, IDS, CHUNKS, isa=isa, fused=f) for f in (True, False))
    assert np.array_equal(fused.view(np.uint32), plain.view(np.uint32))


def test_fusing_changes_no_bit_on_quantised_weights(tiny_gguf: Make) -> None:
    path = tiny_gguf("llama", "Q4_1")
    fused, plain = (logits(path, IDS, CHUNKS, fused=f) for f in (True, False))
    assert np.array_equal(fused.view(np.uint32), plain.view(np.uint32))


@pytest.mark.parametrize("fused", [True, False])
@pytest.mark.parametrize("op", REPLACEABLE)
def test_each_op_can_fall_back_to_its_reference_face_and_says_so(
    op: str, fused: bool, tiny_hf: Make, caplog: pytest.LogCaptureFixture
) -> None:
    path = tiny_hf("qwen3")
    native = logits(path, IDS, CHUNKS, fused=fused, kv_cache_dtype="float32")
    with caplog.at_level(logging.WARNING):
        mixed = logits(path, IDS, CHUNKS, fused=fused, reference_ops=frozenset({op}), kv_cache_dtype="float32")
    assert distance(mixed, native) < 2e-5
    with DebugRunner(path, fused=fused) as runner:
        used = op in {c.op for c in runner.plan.calls}
    assert sum(op in r.getMessage() for r in caplog.records) == used


@pytest.mark.parametrize("num_threads", [1, 2, 3, 5])
def test_logits_do_not_depend_on_the_number_of_threads(num_threads: int, tiny_gguf: Make) -> None:
    path = tiny_gguf("llama", "Q4_0")
    one = logits(path, IDS, CHUNKS)
    assert np.array_equal(logits(path, IDS, CHUNKS, num_threads=num_threads).view(np.uint32), one.view(np.uint32))
