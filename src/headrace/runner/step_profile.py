"""Where the time of a step goes: real decode and prefill steps of a model, call by call, and a trace of them."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from headrace import _native
from headrace.core.errors import ConfigError
from headrace.kernels.roofline import load, this_machine
from headrace.runner.debug import DebugRunner
from headrace.runner.kernel_shares import Scenario, call_cost, least_time
from headrace.weights.checkpoint import open_checkpoint

_STEPS = 10
SCENARIOS = (
    Scenario("decode, 1 sequence", 1, 128, 1),
    Scenario("decode, 16 sequences", 16, 16, 1),
    Scenario("prefill, 256 tokens", 1, 0, 256),
)


@dataclass(frozen=True, slots=True)
class CallProfile:
    """Calls of one type in one step. `label` has no layer number; seconds are wall time, waiting included.

    waited: the part of the threads' time in these calls that they spent in no kernel. num_phases: how often per step
    work was handed out, each time with a wait for the last unit. limit_s: see `kernel_shares.Share`; 0 when unknown.
    """

    scenario: str
    op: str
    label: str
    num_calls: int
    seconds: float
    share: float
    waited: float
    num_phases: int
    num_bytes: int
    num_ops: int
    limit_s: float


@dataclass(frozen=True, slots=True)
class StepProfile:
    """calls: by scenario, longest first. trace: Chrome trace events of one step of each scenario."""

    isa: str
    num_threads: int
    has_limits: bool
    calls: list[CallProfile]
    trace: list[dict[str, Any]]


def profile_steps(model: Path, isa: str, num_threads: int, scenarios: Sequence[Scenario] = SCENARIOS) -> StepProfile:
    """Run some steps of each scenario; the fastest of them is reported. Limits come from `headrace bench roofline`.

    Scenarios that exceed the model's context are left out. Raises ConfigError when that leaves none, or for the
    reference, which has no native calls to measure.
    """
    if isa == "reference":
        raise ConfigError("the reference has no native calls to profile; choose another isa", param="isa")
    trained_for = open_checkpoint(model).config.max_position_embeddings
    fitting = [s for s in scenarios if _longest(s) <= trained_for]
    if not fitting:
        raise ConfigError(f"{model} is made for {trained_for} tokens: too few to profile")
    limits = load(this_machine(isa, num_threads))
    calls: list[CallProfile] = []
    trace: list[dict[str, Any]] = []
    with DebugRunner(
        model,
        num_rows=max(s.num_rows for s in fitting),
        num_threads=num_threads,
        isa=isa,
        max_model_len=max(_longest(s) for s in fitting),
    ) as runner:
        weights_bytes = sum(call.weight_bytes for call in runner.plan.calls)
        for scenario in fitting:
            step = _fastest(scenario, runner)
            trace += _chrome_events(scenario, len(trace), runner, step)
            groups: dict[tuple[str, str], list[int]] = {}
            for i, call in enumerate(runner.plan.calls):
                groups.setdefault((call.op, re.sub(r"\d+", "*", call.label)), []).append(i)
            of_scenario = []
            for (op, label), members in groups.items():
                num_bytes = num_ops = 0
                limit_s = 0.0
                for i in members:
                    call = runner.plan.calls[i]
                    cost = call_cost(call, scenario, runner)
                    num_bytes, num_ops = num_bytes + cost.num_bytes, num_ops + cost.num_ops
                    if limits is not None:
                        limit_s += max(least_time(cost, limits, weights_bytes))
                seconds = 1e-9 * sum(step.times_ns[i] for i in members)
                busy_s = 1e-9 * sum(step.busy_ns[i] for i in members)
                of_scenario.append(
                    CallProfile(
                        scenario.name,
                        op,
                        label,
                        len(members),
                        seconds,
                        1e9 * seconds / max(step.total_ns, 1),
                        max(0.0, 1 - busy_s / (seconds * num_threads)) if seconds > 0 else 0.0,
                        sum(step.phases[i] for i in members),
                        num_bytes,
                        num_ops,
                        limit_s,
                    )
                )
            calls += sorted(of_scenario, key=lambda c: -c.seconds)
    return StepProfile(isa, num_threads, limits is not None, calls, trace)


@dataclass(frozen=True, slots=True)
class _Step:
    times_ns: list[int]
    busy_ns: list[int]
    phases: list[int]
    events: list[tuple[int, int, int, int, int]]

    @property
    def total_ns(self) -> int:
        return sum(self.times_ns)


def _longest(scenario: Scenario) -> int:
    return scenario.query if scenario.context == 0 else scenario.context + scenario.query * (_STEPS + 1)


def _fastest(scenario: Scenario, runner: DebugRunner) -> _Step:
    executor = runner.runner.executor
    if not isinstance(executor, _native.Executor):
        raise ConfigError("a plan with reference calls cannot be profiled")
    rows = range(scenario.num_rows)
    at_once = runner.config.max_num_batched_tokens
    for row in rows:
        runner.forget(row)
        for begin in range(0, scenario.context, at_once):
            runner.step([(row, [1] * min(at_once, scenario.context - begin))])
    best: _Step | None = None
    for repeat in range(_STEPS + 1):
        if scenario.context == 0:
            for row in rows:
                runner.forget(row)
        executor.profile(True, True)
        runner.step([(row, [1] * scenario.query) for row in rows], wanted=[(row, scenario.query - 1) for row in rows])
        step = _Step(executor.call_times_ns(), executor.call_busy_ns(), executor.call_phases(), executor.trace())
        if repeat > 0 and (best is None or step.total_ns < best.total_ns):  # the first one warms up
            best = step
    executor.profile(False)
    if best is None:
        raise RuntimeError("no step was run")
    return best


def _chrome_events(scenario: Scenario, first: int, runner: DebugRunner, step: _Step) -> list[dict[str, Any]]:
    """Complete events ("ph": "X") of the Trace Event Format, in microseconds; a process per scenario."""
    start = min((event[3] for event in step.events), default=0)
    name = {"name": "process_name", "ph": "M", "pid": first, "args": {"name": scenario.name}}
    return [
        name,
        *(
            {
                "name": runner.plan.calls[call].label,
                "cat": runner.plan.calls[call].op,
                "ph": "X",
                "pid": first,
                "tid": thread,
                "ts": (begin - start) / 1e3,
                "dur": (end - begin) / 1e3,
                "args": {"call": call, "phase": phase},
            }
            for thread, call, phase, begin, end in step.events
        ),
    ]
