from pathlib import Path

import numpy as np
import pytest
from benchmarks.make_random_llama import SIZES, random_blocks, write

from headrace.runner.debug import logits
from headrace.weights.dequantize import dequantize
from headrace.weights.elements import ElementType


@pytest.mark.parametrize("kind", ["q4_0", "q4_1", "q8_0"])
def test_random_weights_have_the_variance_of_an_initialised_layer(kind: str) -> None:
    raw = random_blocks(kind, 64, 256, np.random.default_rng(1))
    weights = dequantize(ElementType[kind.upper()], raw.reshape(-1), (64, 256))
    assert abs(float(weights.mean())) < 0.01
    assert float(weights.std()) == pytest.approx(256**-0.5, rel=0.1)


@pytest.mark.parametrize("kind", ["q4_1", "q8_0"])
def test_the_file_is_a_model_whose_logits_are_finite(kind: str, smollm2_path: Path, tmp_path: Path) -> None:
    path = tmp_path / "random.gguf"
    write(path, kind, SIZES["tiny"], smollm2_path)
    found = logits(path, [1, 2, 3])
    assert np.isfinite(found).all()
    assert 0.1 < float(found.std()) < 100
