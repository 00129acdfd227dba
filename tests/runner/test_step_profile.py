from collections.abc import Callable
from pathlib import Path

import pytest

from headrace import _native
from headrace.cli.profile_table import profile_as_dict, profile_as_text
from headrace.core.errors import ConfigError
from headrace.kernels.roofline import Roofline, save, this_machine
from headrace.runner.kernel_shares import Scenario
from headrace.runner.step_profile import profile_steps

ISA = _native.available_isas()[0]
SCENARIOS = (Scenario("decode", 1, 4, 1), Scenario("prefill", 1, 0, 16))


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HEADRACE_CACHE", str(tmp_path / "cache"))


def test_every_call_type_is_listed_with_its_share_of_the_step(tiny_gguf: Callable[..., Path]) -> None:
    profile = profile_steps(tiny_gguf("llama", "Q4_1"), ISA, 2, SCENARIOS)
    for scenario in ("decode", "prefill"):
        calls = [c for c in profile.calls if c.scenario == scenario]
        assert sum(c.share for c in calls) == pytest.approx(1)
        assert {"linear", "attention", "embed", "sample"} <= {c.op for c in calls}
        assert [c.seconds for c in calls] == sorted((c.seconds for c in calls), reverse=True)
        assert all(0 <= c.waited <= 1 and c.limit_s == 0 for c in calls)
    # A single token has one unit of embedding: nothing to hand out.
    assert next(c.num_phases for c in profile.calls if c.op == "embed" and c.scenario == "decode") == 0
    assert next(c.num_phases for c in profile.calls if c.op == "attention" and c.scenario == "prefill") > 0
    text = profile_as_text(profile)
    assert "headrace bench roofline" in text and "layers.*" in text
    assert profile_as_dict(profile)["calls"][0]["scenario"] == "decode"


def test_limits_that_were_measured_here_are_used(tiny_gguf: Callable[..., Path]) -> None:
    peaks = dict.fromkeys(("int8_gops", "q4_ceiling_gops", "bf16_gflops", "f32_gflops"), 1e3)
    save(Roofline(this_machine(ISA, 2), 10.0, **peaks, read={1 << 20: {1: 5.0, 2: 10.0}}, one_thread=peaks))
    profile = profile_steps(tiny_gguf("llama", "Q4_1"), ISA, 2, SCENARIOS)
    assert profile.has_limits
    assert all((c.limit_s > 0) == (c.op in ("linear", "attention")) for c in profile.calls)
    assert "of limit" in profile_as_text(profile)


def test_the_trace_has_a_process_per_scenario_and_times_from_zero(tiny_gguf: Callable[..., Path]) -> None:
    trace = profile_steps(tiny_gguf("llama", "Q4_1"), ISA, 2, SCENARIOS).trace
    assert [e["args"]["name"] for e in trace if e["ph"] == "M"] == ["decode", "prefill"]
    events = [e for e in trace if e["ph"] == "X"]
    assert min(e["ts"] for e in events) == 0 and all(e["dur"] >= 0 for e in events)
    assert {e["tid"] for e in events} <= {0, 1} and len({e["pid"] for e in events}) == 2


def test_what_cannot_be_profiled_is_refused(tiny_gguf: Callable[..., Path]) -> None:
    model = tiny_gguf("llama", "Q4_1")
    with pytest.raises(ConfigError, match="reference"):
        profile_steps(model, "reference", 1)
    with pytest.raises(ConfigError, match="too few"):
        profile_steps(model, ISA, 1, (Scenario("too long", 1, 0, 1 << 24),))
