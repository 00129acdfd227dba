"""Whole-model logits against transformers in float32, on tiny random models of every family and weight format.

Errors are measured in units of the reference's logit range (largest minus smallest logit). Bounds:

- float weights (f32, bf16, f16) with a float32 KV cache: the arithmetic is float32 on both sides, so 1e-4 holds
  against a reference with the same rounded weights;
- a bfloat16 KV cache (the default) rounds keys and values to 8 bits: `BF16_KV_LARGEST` and `BF16_KV_RMS`;
- quantised weights: matmuls also round each group of 32 activations to 8 bits, so the largest error may be
  `INT8_LARGEST` and the root mean square `INT8_RMS` against the dequantised float model. (Seen: 0.050 and 0.0044;
  the float formats: 2e-6.)
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest

from headrace.runner import debug
from tests.fixtures.reference import hf_model, reference_logits, tiny_gguf_model
from tests.fixtures.tiny_models import SPECS

FLOAT_BOUND = 1e-4
INT8_LARGEST, INT8_RMS = 0.08, 0.008
BF16_KV_LARGEST, BF16_KV_RMS = 0.01, 0.001
NUM_TOKENS = 250
MIXED_CHUNKS = (1, 16, 47, 3, 64, 1, 1, 100, 17)

Make = Callable[..., Path]


def token_ids(seed: int, num_tokens: int = NUM_TOKENS) -> list[int]:
    return [int(t) for t in np.random.default_rng(seed).integers(3, 300, num_tokens)]


def chunkings() -> dict[str, Sequence[int]]:
    return {"full": [NUM_TOKENS], "one by one": [1] * NUM_TOKENS, "mixed": MIXED_CHUNKS}


def errors(ours: npt.NDArray[np.float32], reference: npt.NDArray[np.float32]) -> tuple[float, float]:
    """(largest, root mean square) difference in units of the reference's range."""
    assert ours.shape == reference.shape
    assert np.isfinite(ours).all()
    difference = (ours - reference) / np.ptp(reference)
    return float(np.abs(difference).max()), float(np.sqrt(np.mean(np.square(difference))))


def test_the_mixed_chunks_cover_every_token() -> None:
    assert sum(MIXED_CHUNKS) == NUM_TOKENS


@pytest.mark.parametrize("chunks", chunkings().values(), ids=chunkings())
@pytest.mark.parametrize("name", SPECS)
def test_float32_folders_match_transformers(name: str, chunks: Sequence[int], tiny_hf: Make) -> None:
    ids = token_ids(1)
    reference = reference_logits(hf_model(tiny_hf(name)), ids)
    largest, _ = errors(debug.logits(tiny_hf(name), ids, list(chunks), kv_cache_dtype="float32"), reference)
    assert largest <= FLOAT_BOUND


@pytest.mark.parametrize("dtype", ["bf16", "f16"])
@pytest.mark.parametrize("name", ["llama", "qwen2", "qwen3"])
def test_half_precision_folders_match_the_model_of_their_rounded_weights(name: str, dtype: str, tiny_hf: Make) -> None:
    ids = token_ids(2)
    reference = reference_logits(hf_model(tiny_hf(name, dtype)), ids)
    largest, _ = errors(
        debug.logits(tiny_hf(name, dtype), ids, list(MIXED_CHUNKS), kv_cache_dtype="float32"), reference
    )
    assert largest <= FLOAT_BOUND


@pytest.mark.parametrize("tensor_type", ["F32", "F16"])
@pytest.mark.parametrize("name", SPECS)
def test_float_gguf_files_match_transformers(name: str, tensor_type: str, tiny_gguf: Make) -> None:
    """Covers the permuted q and k rows, and Llama 3's frequencies stored as a tensor."""
    ids = token_ids(3)
    path = tiny_gguf(name, tensor_type)
    reference = reference_logits(tiny_gguf_model(path, SPECS[name]), ids)
    largest, _ = errors(debug.logits(path, ids, list(MIXED_CHUNKS), kv_cache_dtype="float32"), reference)
    assert largest <= FLOAT_BOUND


@pytest.mark.parametrize("name", SPECS)
def test_bfloat16_keys_and_values_stay_within_their_bound(name: str, tiny_hf: Make) -> None:
    ids = token_ids(1)
    reference = reference_logits(hf_model(tiny_hf(name)), ids)
    largest, rms = errors(debug.logits(tiny_hf(name), ids, list(MIXED_CHUNKS), kv_cache_dtype="bfloat16"), reference)
    assert FLOAT_BOUND < largest <= BF16_KV_LARGEST
    assert rms <= BF16_KV_RMS


@pytest.mark.parametrize("tensor_type", ["Q8_0", "Q4_0", "Q4_1"])
@pytest.mark.parametrize("name", ["llama", "llama-untied", "qwen2", "qwen3"])
def test_quantised_gguf_files_stay_near_the_dequantised_model(name: str, tensor_type: str, tiny_gguf: Make) -> None:
    ids = token_ids(4)
    path = tiny_gguf(name, tensor_type)
    reference = reference_logits(tiny_gguf_model(path, SPECS[name]), ids)
    largest, rms = errors(debug.logits(path, ids, list(MIXED_CHUNKS)), reference)
    assert largest <= INT8_LARGEST
    assert rms <= INT8_RMS


@pytest.mark.parametrize("tensor_type", ["F32", "Q8_0", "Q4_1"])
def test_chunking_does_not_change_a_bit(tensor_type: str, tiny_gguf: Make) -> None:
    ids = token_ids(5)
    path = tiny_gguf("llama", tensor_type)
    full, single, mixed = (debug.logits(path, ids, list(c)).tobytes() for c in chunkings().values())
    assert full == single == mixed
