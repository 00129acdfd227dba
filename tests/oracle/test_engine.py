"""The whole engine against transformers: log-probabilities of what was generated, prefix cache on and off."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest

from headrace.core.outputs import CompletionOutput, TokenLogprobs
from headrace.core.params import SamplingParams
from headrace.engine.llm import LLM
from tests.fixtures.reference import hf_model, reference_logits
from tests.fixtures.tiny_models import SPECS

BOUND = 1e-4
NUM_PROMPT, NUM_NEW = 75, 40


def prompt(seed: int) -> list[int]:
    return [int(t) for t in np.random.default_rng(seed).integers(3, 300, NUM_PROMPT)]


def log_softmax(logits: npt.NDArray[np.float32]) -> npt.NDArray[np.float64]:
    shifted = logits.astype(np.float64) - logits.max(-1, keepdims=True)
    normalised: npt.NDArray[np.float64] = shifted - np.log(np.exp(shifted).sum(-1, keepdims=True))
    return normalised


def assert_logprobs_match(got: list[TokenLogprobs], ids: list[int], logits: npt.NDArray[np.float32]) -> None:
    """`got[i]` describes `ids[i]`, which the logits row i predicts."""
    assert [g.token_id for g in got] == ids
    logprobs, bound = log_softmax(logits), BOUND * np.ptp(logits)
    for g, row in zip(got, logprobs, strict=True):
        assert abs(g.logprob - row[g.token_id]) <= bound
        np.testing.assert_allclose([p for _, p in g.top], row[[t for t, _ in g.top]], atol=bound)
        np.testing.assert_allclose([p for _, p in g.top], np.sort(row)[::-1][: len(g.top)], atol=bound)
        likelier = int((row > row[g.token_id]).sum()) + 1
        assert abs(g.rank - likelier) <= int((np.abs(row - row[g.token_id]) <= 2 * bound).sum())


def generate(llm: LLM, ids: list[int], **params: object) -> tuple[CompletionOutput, int]:
    sampling = SamplingParams(max_tokens=NUM_NEW, ignore_eos=True, logprobs=8, **params)
    (output,) = llm.generate(ids, sampling)
    return output.outputs[0], output.num_cached_tokens


@pytest.mark.parametrize("caching", [True, False], ids=["prefix cache", "no prefix cache"])
@pytest.mark.parametrize("name", SPECS)
def test_generated_tokens_have_transformers_logprobs(name: str, caching: bool, tiny_hf: Callable[..., Path]) -> None:
    """Greedy and sampled; the second run of a prompt reuses what the first left in the cache, and changes nothing."""
    path, ids = tiny_hf(name), prompt(11)
    reference = hf_model(path)
    with LLM(str(path), enable_prefix_caching=caching, max_num_batched_tokens=32, kv_cache_dtype="float32") as llm:
        for params in ({"temperature": 0.0}, {"temperature": 1.3, "seed": 5}):
            first, _ = generate(llm, ids, **params)
            again, num_cached = generate(llm, ids, **params)
            assert num_cached == (64 if caching else 0)
            assert again.token_ids == first.token_ids
            assert again.logprobs == first.logprobs
            assert len(first.token_ids) == NUM_NEW
            logits = reference_logits(reference, ids + first.token_ids)[NUM_PROMPT - 1 : -1]
            assert first.logprobs is not None
            assert_logprobs_match(first.logprobs, first.token_ids, logits)
            if not params["temperature"]:
                assert all(g.rank == 1 for g in first.logprobs)
        llm.core.check_integrity()


@pytest.mark.parametrize("name", ["llama", "qwen3"])
def test_prompt_logprobs_are_transformers(name: str, tiny_hf: Callable[..., Path]) -> None:
    path, ids = tiny_hf(name), prompt(12)
    with LLM(str(path), max_num_batched_tokens=32, kv_cache_dtype="float32") as llm:
        generate(llm, ids)
        (output,) = llm.generate(ids, SamplingParams(max_tokens=0, prompt_logprobs=5))
    assert output.prompt_logprobs[0] is None
    assert_logprobs_match(output.prompt_logprobs[1:], ids[1:], reference_logits(hf_model(path), ids)[:-1])


def test_company_does_not_change_a_request(tiny_hf: Callable[..., Path]) -> None:
    """Alone, and among 15 others in a cache so small that requests are preempted: the same tokens and logprobs."""
    path = tiny_hf("llama")
    prompts = [prompt(20 + i)[: 20 + 3 * i] for i in range(16)]
    params = [
        SamplingParams(max_tokens=NUM_NEW, ignore_eos=True, logprobs=3, temperature=float(i % 2), seed=i)
        for i in range(16)
    ]
    with LLM(str(path), enable_prefix_caching=False) as llm:
        alone = [llm.generate(p, sp)[0].outputs[0] for p, sp in zip(prompts, params, strict=True)]
        per_token = 2 * SPECS["llama"].num_layers * SPECS["llama"].num_kv_heads * SPECS["llama"].head_dim * 2
    with LLM(str(path), max_num_batched_tokens=48, kv_cache_memory_bytes=40 * 16 * per_token, max_model_len=256) as llm:
        crowd = [o.outputs[0] for o in llm.generate(prompts, params, use_tqdm=False)]
        assert llm.stats().num_preemptions > 0, "the cache was too large to preempt anything"
        llm.core.check_integrity()
    for one, other in zip(alone, crowd, strict=True):
        assert other.token_ids == one.token_ids
        assert other.logprobs == one.logprobs
