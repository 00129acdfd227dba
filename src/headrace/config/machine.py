"""What this machine grants this process: compute threads and memory, each with the source of the number.

Functions read files below a `root` folder (/ in real life, a fake tree in tests) and arguments; nothing else.
"""

from __future__ import annotations

import os
import resource
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path

from headrace.config.cgroup import cpu_quota, group_memory
from headrace.config.human import format_bytes
from headrace.config.options import Source
from headrace.core.errors import CapacityError

_ROOT = Path("/")


@dataclass(frozen=True, slots=True)
class ThreadChoice:
    """How many compute threads to use. `source` says why; `note` is empty or a warning."""

    num_threads: int
    source: str
    note: str = ""


@dataclass(frozen=True, slots=True)
class MemoryBound:
    """One bound on this process's memory: its size and what is left of it now."""

    limit_bytes: int
    available_bytes: int
    source: str


@dataclass(frozen=True, slots=True)
class MemoryBudget:
    """What the engine may use in all, and the tightest bound it was held against."""

    budget_bytes: int
    source: str
    bound: MemoryBound


def choose_threads(
    requested: int | None = None,
    requested_source: Source = "argument",
    *,
    root: Path = _ROOT,
    affinity: Collection[int] | None = None,
) -> ThreadChoice:
    """The requested number; else the processors in the affinity mask (which a cpuset narrows), less a CPU quota.

    A quota is rounded down (1.5 processors are one thread: a second one would be stopped half of the time and the
    first would wait for it at every barrier), but to no less than one. OMP_NUM_THREADS is not read.
    """
    allowed = os.sched_getaffinity(0) if affinity is None else affinity
    num_allowed = max(1, len(allowed))
    quota = cpu_quota(root)
    granted = num_allowed
    reason = f"processors this process may run on ({num_allowed} of {_num_online(root, num_allowed)})"
    if quota is not None and int(quota.num_cpus) < num_allowed:
        granted = max(1, int(quota.num_cpus))
        reason = f"{quota.source}: {quota.num_cpus:g} processors, rounded down"
        if quota.num_cpus < 1:
            reason = f"{quota.source}: {quota.num_cpus:g} processors, one thread at least"
    if requested is None:
        return ThreadChoice(granted, reason)
    note = ""
    if requested > granted:
        note = f"{requested} threads were asked for, more than the {granted} that this machine grants ({reason}); "
        note += "threads will wait for each other"
    return ThreadChoice(requested, f"num_threads ({requested_source})", note)


def memory_bounds(*, root: Path = _ROOT) -> list[MemoryBound]:
    """Every bound that applies, tightest (least left) first: control group, address-space limit, physical memory."""
    bounds = []
    group = group_memory(root)
    if group is not None:
        bounds.append(MemoryBound(group.limit_bytes, group.available_bytes, group.source))
    soft, _ = resource.getrlimit(resource.RLIMIT_AS)
    if soft != resource.RLIM_INFINITY:
        used = _kilobytes(root / "proc/self/status", "VmSize") or 0
        bounds.append(MemoryBound(soft, max(0, soft - used), "address-space limit (RLIMIT_AS, ulimit -v)"))
    total = _kilobytes(root / "proc/meminfo", "MemTotal")
    available = _kilobytes(root / "proc/meminfo", "MemAvailable")
    if total is not None and available is not None:
        bounds.append(MemoryBound(total, available, "physical memory (MemAvailable)"))
    return sorted(bounds, key=lambda bound: bound.available_bytes)


def memory_budget(
    requested_bytes: int | None = None, requested_source: Source = "argument", *, bounds: list[MemoryBound]
) -> MemoryBudget:
    """The requested bytes; else half of what the tightest bound leaves.

    Raises CapacityError when more is requested than a bound could ever give, or when no bound is known at all and
    nothing was requested.
    """
    if not bounds:
        if requested_bytes is None:
            raise CapacityError("the memory of this machine cannot be read; give --memory-budget-bytes")
        bounds = [MemoryBound(requested_bytes, requested_bytes, "nothing else known")]
    tightest = bounds[0]
    if requested_bytes is None:
        left = format_bytes(tightest.available_bytes)
        return MemoryBudget(tightest.available_bytes // 2, f"half of {left} free: {tightest.source}", tightest)
    smallest = min(bounds, key=lambda bound: bound.limit_bytes)
    if requested_bytes > smallest.limit_bytes:
        raise CapacityError(
            f"memory_budget_bytes is {format_bytes(requested_bytes)}, but this process can have at most "
            f"{format_bytes(smallest.limit_bytes)}: {smallest.source}",
            param="memory_budget_bytes",
        )
    return MemoryBudget(requested_bytes, f"memory_budget_bytes ({requested_source})", tightest)


def _num_online(root: Path, fallback: int) -> int:
    """Processors of the whole machine, from a list like 0-3,8."""
    try:
        text = (root / "sys/devices/system/cpu/online").read_text(encoding="ascii").strip()
        spans = [part.split("-") for part in text.split(",")]
        return sum(int(span[-1]) - int(span[0]) + 1 for span in spans)
    except (OSError, ValueError):
        return fallback


def _kilobytes(path: Path, key: str) -> int | None:
    """The bytes of a `Key:   123 kB` line."""
    try:
        text = path.read_text(encoding="ascii", errors="replace")
    except OSError:
        return None
    for line in text.splitlines():
        name, _, rest = line.partition(":")
        words = rest.split()
        if name == key and len(words) == 2 and words[0].isdigit():
            return int(words[0]) * 1024
    return None
