"""The option `quantization`, from the option to the plan to logits."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from headrace.config.engine import EngineConfig
from headrace.core.errors import ConfigError
from headrace.graph.plan import Plan
from headrace.kernels.formats import quantised_format
from headrace.runner.debug import logits
from headrace.runner.planning import plan_model
from headrace.weights.checkpoint import open_checkpoint
from headrace.weights.elements import ElementType
from headrace.weights.packed import PackedFormat

IDS = [5, 17, 230, 41, 5, 99, 3, 120]


def plan(model: Path, **options: object) -> Plan:
    return plan_model(EngineConfig(model=str(model), **options), open_checkpoint(model)).plan


def matrix_formats(model: Path, quantization: str) -> set[str]:
    weights = plan(model, quantization=quantization).weights
    return {w.format for w in weights if hasattr(w.slot, "num_inputs")}


@pytest.mark.parametrize("quantization", ["q8", "q4", "bf16"])
def test_a_float_checkpoint_takes_the_format_asked_for_and_the_plan_says_so(
    quantization: str, tiny_hf: Callable[..., Path]
) -> None:
    model = tiny_hf("llama", "f16")
    assert matrix_formats(model, quantization) == {quantization}
    kept, rounded = plan(model), plan(model, quantization=quantization)
    assert kept.numerics_id != rounded.numerics_id
    said = [c.numerics.get("quantised_from") for c in rounded.calls if c.op in ("linear", "embed")]
    assert set(said) == {"F16"}
    assert not any("quantised_from" in c.numerics for c in kept.calls)


def test_quantised_weights_stay_as_they_are_but_for_q8_0_to_q4() -> None:
    for source in (ElementType.Q4_0, ElementType.Q4_1):
        for option in ("q8", "q4", "bf16"):
            assert quantised_format(source, 64, option) is PackedFormat.Q4
    assert quantised_format(ElementType.Q8_0, 64, "q4") is PackedFormat.Q4
    assert quantised_format(ElementType.Q8_0, 64, "bf16") is PackedFormat.Q8


def test_inputs_that_do_not_fill_groups_keep_their_floats() -> None:
    assert quantised_format(ElementType.F16, 48, "q4") is PackedFormat.F16
    assert quantised_format(ElementType.F16, 48, "bf16") is PackedFormat.BF16


@pytest.mark.parametrize(("quantization", "bound"), [("bf16", 0.02), ("q8", 0.05), ("q4", 0.5)])
def test_logits_stay_near_those_of_the_checkpoint(
    quantization: str, bound: float, tiny_hf: Callable[..., Path]
) -> None:
    model = tiny_hf("llama", "f32")
    exact, got = logits(model, IDS), logits(model, IDS, quantization=quantization)
    difference = np.abs(got - exact).max() / np.abs(exact).max()
    assert 0 < difference < bound


def test_the_reference_faces_read_quantised_weights_too(tiny_hf: Callable[..., Path]) -> None:
    model = tiny_hf("llama", "bf16")
    native = logits(model, IDS, quantization="q4")
    reference = logits(model, IDS, quantization="q4", isa="reference")
    np.testing.assert_allclose(native, reference, atol=2e-2 * np.abs(reference).max())


def test_an_unknown_quantization_is_refused() -> None:
    for name in ("awq", "gguf"):
        with pytest.raises(ConfigError, match="quantization"):
            EngineConfig(quantization=name)
