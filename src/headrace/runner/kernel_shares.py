"""Each kernel's share of what the machine can give, measured on a model's own plan and weights."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from headrace import _native
from headrace.core.errors import ConfigError
from headrace.graph.plan import PlanCall
from headrace.kernels.roofline import Roofline
from headrace.runner.debug import DebugRunner
from headrace.weights.checkpoint import open_checkpoint

_REPEATS = 7
_OTHER = "everything else"


@dataclass(frozen=True, slots=True)
class Scenario:
    """Steps of `num_rows` sequences that hold `context` tokens and get `query` more each."""

    name: str
    num_rows: int
    context: int
    query: int

    @property
    def num_tokens(self) -> int:
        return self.num_rows * self.query

    @property
    def longest(self) -> int:
        """Tokens that a row holds at the end. A prompt starts anew each time, an answer goes on."""
        return self.query if self.context == 0 else self.context + self.query * (_REPEATS + 1)


SCENARIOS = (
    Scenario("decode, 1 sequence", 1, 256, 1),
    Scenario("decode, 32 sequences", 32, 16, 1),
    Scenario("prefill, 256 tokens", 1, 0, 256),
)


@dataclass(frozen=True, slots=True)
class Share:
    """One kernel in one scenario, per step.

    limit_s: the least time that memory or arithmetic allows, whichever is more, and `bound` says which. For what has
    no such figure (norms, sampling, barriers) it is 0.
    """

    scenario: str
    kernel: str
    num_calls: int
    seconds: float
    num_bytes: int
    num_ops: int
    limit_s: float
    bound: str

    @property
    def share(self) -> float:
        """Of the limit; 0 without one."""
        return self.limit_s / self.seconds if self.seconds > 0 else 0.0


def kernel_shares(
    model: Path,
    limits: Roofline,
    scenarios: Sequence[Scenario] = SCENARIOS,
    *,
    progress: Callable[[str], None] | None = None,
) -> list[Share]:
    """Run some steps of each scenario with the model's plan; the fastest of them counts, call by call.

    Scenarios that exceed the model's context are left out; raises ConfigError when that leaves none.
    """
    say = progress or _silent
    trained_for = open_checkpoint(model).config.max_position_embeddings
    fitting = [s for s in scenarios if s.longest <= trained_for]
    if not fitting:
        raise ConfigError(f"{model} is made for {trained_for} tokens: too few to measure anything")
    machine = limits.machine
    out: list[Share] = []
    say("loading the model")
    with DebugRunner(
        model,
        num_rows=max(s.num_rows for s in fitting),
        num_threads=machine.num_threads,
        isa=machine.isa,
        max_model_len=max(s.longest for s in fitting),
    ) as runner:
        for scenario in fitting:
            say(scenario.name)
            out += _shares(scenario, runner, _fastest_s(scenario, runner), limits)
    return out


def _silent(_text: str) -> None:
    """No progress is wanted."""


def _fastest_s(scenario: Scenario, runner: DebugRunner) -> list[float]:
    """The least seconds of each call over the repeats. Other work on the machine only ever adds."""
    executor = runner.runner.executor
    if not isinstance(executor, _native.Executor):
        raise TypeError("only native kernels are measured")
    rows = range(scenario.num_rows)
    at_once = runner.config.max_num_batched_tokens
    for row in rows:
        runner.forget(row)
        for begin in range(0, scenario.context, at_once):
            runner.step([(row, [1] * min(at_once, scenario.context - begin))])
    best: list[float] = []
    for repeat in range(_REPEATS + 1):
        if scenario.context == 0:
            for row in rows:
                runner.forget(row)
        executor.profile(True)
        wanted = [(row, scenario.query - 1) for row in rows]
        runner.step([(row, [1] * scenario.query) for row in rows], wanted=wanted)
        times = [1e-9 * ns for ns in executor.call_times_ns()]
        if repeat > 0:  # the first one warms up
            best = [min(a, b) for a, b in zip(best or times, times, strict=True)]
    executor.profile(False)
    return best


def _shares(scenario: Scenario, runner: DebugRunner, seconds: Sequence[float], limits: Roofline) -> list[Share]:
    formats = packed_formats_by_offset(runner)
    groups: dict[str, list[tuple[PlanCall, float]]] = {}
    for call, spent in zip(runner.plan.calls, seconds, strict=True):
        groups.setdefault(_kernel(call, formats), []).append((call, spent))
    weights_bytes = sum(call.weight_bytes for call in runner.plan.calls)
    out = []
    for kernel, members in groups.items():
        costs = [call_cost(call, scenario, runner) for call, _ in members]
        num_bytes, num_ops = sum(c.num_bytes for c in costs), sum(c.num_ops for c in costs)
        kinds = [c.arithmetic for c in costs if c.arithmetic]
        total = CallCost(num_bytes, num_ops, kinds[0] if kinds else "")
        memory_s, compute_s = least_time(total, limits, weights_bytes)
        bound = "memory" if memory_s >= compute_s else "arithmetic"
        spent_s = sum(spent for _, spent in members)
        limit_s = max(memory_s, compute_s)
        out.append(
            Share(scenario.name, kernel, len(members), spent_s, num_bytes, num_ops, limit_s, bound if limit_s else "")
        )
    return sorted(out, key=lambda share: -share.seconds)


@dataclass(frozen=True, slots=True)
class CallCost:
    """What a call must read and compute in one step, and in which arithmetic: a packed format, or "" for unknown."""

    num_bytes: int = 0
    num_ops: int = 0
    arithmetic: str = ""


def packed_formats_by_offset(runner: DebugRunner) -> dict[int, str]:
    """Packed format of each weight by its place in the weights buffer."""
    return {w.offset_bytes: w.format for w in runner.plan.weights}


def call_cost(call: PlanCall, scenario: Scenario, runner: DebugRunner) -> CallCost:
    """Linear and attention calls have a cost; what the others do is small and nothing bounds it usefully."""
    if call.op == "linear":
        rows = scenario.num_rows if call.segment == "logits" else scenario.num_tokens
        kernel = _kernel(call, packed_formats_by_offset(runner))
        return CallCost(call.weight_bytes, call.flops * rows, kernel.split()[-1])
    if call.op == "attention":
        spec = runner.runner.memory.specs[call.dims[0]]
        seen = sum(scenario.context + i + 1 for i in range(scenario.query))
        per_token = spec.bytes_per_block // (spec.block_size * spec.num_layers)
        return CallCost(
            per_token * scenario.num_rows * (scenario.context + scenario.query),
            4 * call.dims[2] * call.dims[4] * seen * scenario.num_rows,
            "f32",
        )
    return CallCost()


def least_time(cost: CallCost, limits: Roofline, weights_bytes: int) -> tuple[float, float]:
    """Seconds that memory and arithmetic need at least; `weights_bytes` is the working set."""
    rate = _peak(cost.arithmetic, limits) if cost.arithmetic else 0.0
    memory_s = cost.num_bytes / (1e9 * limits.read_at(weights_bytes)) if cost.num_bytes else 0.0
    return memory_s, cost.num_ops / (1e9 * rate) if cost.num_ops and rate else 0.0


def _kernel(call: PlanCall, formats: dict[int, str]) -> str:
    if call.op == "linear":
        weight = next(ref for ref in call.refs if ref is not None and ref.buffer == "weights")
        return f"linear {formats.get(weight.offset_bytes, '?')}"
    return call.op if call.op == "attention" else _OTHER


def _peak(packed_format: str, limits: Roofline) -> float:
    """10^9 operations per second that the format's arithmetic allows."""
    if packed_format == "q4":
        return limits.q4_ceiling_gops or limits.f32_gflops
    if packed_format == "q8":
        return limits.int8_gops or limits.f32_gflops
    return limits.f32_gflops
