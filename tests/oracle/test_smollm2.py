"""The demo model: known greedy tokens, and the perplexity of the dequantised float32 model."""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path
from pydoc_data.topics import topics

import numpy as np
import pytest

from headrace.core.params import SamplingParams
from headrace.engine.llm import LLM
from tests.fixtures.reference import llama_gguf_model, reference_logits

NUM_TOKENS = 512
PERPLEXITY_BOUND = 0.01


@pytest.fixture(scope="module")
def llm(smollm2_path: Path) -> Iterator[LLM]:
    with LLM(str(smollm2_path), max_model_len=1024) as made:
        yield made


def text_ids(llm: LLM) -> list[int]:
    """Some English from the standard library; its words change with Python, both sides read the same ones."""
    ids: list[int] = llm.tokenizer.encode(topics["execmodel"][:3000])[:NUM_TOKENS]
    assert len(ids) == NUM_TOKENS
    return ids


def test_greedy_continuation_is_the_known_one(llm: LLM) -> None:
    assert llm.tokenizer.encode("The capital of France is") == [504, 3575, 282, 4649, 314]
    (output,) = llm.generate(["The capital of France is"], SamplingParams(temperature=0, max_tokens=5))
    assert output.outputs[0].token_ids == [7042, 30, 198, 198, 504]
    assert output.outputs[0].text == " Paris.\n\nThe"


def test_a_token_id_prompt_and_a_warm_cache_give_the_same(llm: LLM) -> None:
    ids = text_ids(llm)[:200]
    params = SamplingParams(temperature=0, max_tokens=24)
    cold, warm = (llm.generate(ids, params)[0] for _ in range(2))
    assert warm.num_cached_tokens == 192
    assert warm.outputs[0].token_ids == cold.outputs[0].token_ids


def test_perplexity_is_that_of_the_dequantised_model(llm: LLM, smollm2_path: Path) -> None:
    ids = text_ids(llm)
    (output,) = llm.generate(ids, SamplingParams(max_tokens=0, prompt_logprobs=0))
    ours = -sum(p.logprob for p in output.prompt_logprobs[1:]) / (NUM_TOKENS - 1)
    logits = reference_logits(llama_gguf_model(smollm2_path), ids)[:-1].astype(np.float64)
    peak = logits.max(-1)
    normaliser = peak + np.log(np.exp(logits - peak[:, None]).sum(-1))
    reference = float(np.mean(normaliser - logits[np.arange(NUM_TOKENS - 1), ids[1:]]))
    assert 10 < math.exp(reference) < 30, "the reference itself reads the model wrong"
    assert math.exp(ours) == pytest.approx(math.exp(reference), rel=PERPLEXITY_BOUND)
