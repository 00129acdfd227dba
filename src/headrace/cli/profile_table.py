"""The step profile as a table and as JSON."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from headrace.cli.table import render_table

if TYPE_CHECKING:
    from headrace.runner.step_profile import CallProfile, StepProfile

_COLUMNS = ("calls", "op", "times", "phases", "share", "µs/step", "waiting", "GB/s", "GFLOP/s", "of limit")


def profile_as_dict(profile: StepProfile) -> dict[str, Any]:
    """Everything but the trace."""
    return {
        "isa": profile.isa,
        "num_threads": profile.num_threads,
        "has_limits": profile.has_limits,
        "calls": [asdict(call) for call in profile.calls],
    }


def profile_as_text(profile: StepProfile) -> str:
    """One table per scenario, the longest calls first."""
    parts = [f"kernels {profile.isa}, {profile.num_threads} threads"]
    if not profile.has_limits:
        parts[0] += "; limits are not known here: `headrace bench roofline` measures them"
    for scenario in dict.fromkeys(call.scenario for call in profile.calls):
        calls = [call for call in profile.calls if call.scenario == scenario]
        total_s, num_phases = sum(c.seconds for c in calls), sum(c.num_phases for c in calls)
        waited = sum(c.waited * c.seconds for c in calls) / total_s if total_s > 0 else 0.0
        head = (
            f"{scenario}: {1e3 * total_s:.3f} ms a step, {num_phases} phases, "
            f"{100 * waited:.1f} % of the threads' time waiting"
        )
        parts.append(head + "\n" + render_table(_COLUMNS, [_row(c) for c in calls], right=_COLUMNS[2:]))
    return "\n\n".join(parts)


def _row(call: CallProfile) -> tuple[str, ...]:
    seconds = call.seconds
    return (
        call.label,
        call.op,
        f"{call.num_calls}x",
        str(call.num_phases),
        f"{100 * call.share:.1f} %",
        f"{1e6 * seconds:.1f}",
        f"{100 * call.waited:.0f} %",
        f"{1e-9 * call.num_bytes / seconds:.1f}" if call.num_bytes and seconds else "",
        f"{1e-9 * call.num_ops / seconds:.1f}" if call.num_ops and seconds else "",
        f"{100 * call.limit_s / seconds:.0f} %" if call.limit_s and seconds else "",
    )
