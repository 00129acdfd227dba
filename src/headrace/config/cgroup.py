"""Control groups, versions 1 and 2, as the kernel's files show them: CPU quota and memory limit of this process.

A limit may sit on the process's own group or on any group above it, so every level is read and the tightest wins.
Inside a container the path in /proc/self/cgroup may be the host's; then the mount's root is the process's group.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

# Version 1 writes "no limit" as the largest page-aligned signed 64-bit number.
_V1_UNLIMITED_BYTES = 1 << 60


@dataclass(frozen=True, slots=True)
class CpuQuota:
    """Processors' worth of time per second that a group may use."""

    num_cpus: float
    source: str


@dataclass(frozen=True, slots=True)
class GroupMemory:
    """A group's limit, and what is left below it when its file cache is dropped."""

    limit_bytes: int
    available_bytes: int
    source: str


def cpu_quota(root: Path) -> CpuQuota | None:
    """The tightest CPU quota of any level, or None. `root` is / or a stand-in for it."""
    quotas = []
    for folder in _levels(root, "cpu"):
        words = _words(folder / "cpu.max")
        if not words:
            words = _words(folder / "cpu.cfs_quota_us") + _words(folder / "cpu.cfs_period_us")
        if len(words) == 2 and words[0] not in ("max", "-1") and _is_count(words[0]) and _is_count(words[1]):
            quotas.append(CpuQuota(int(words[0]) / int(words[1]), _shown(root, folder, "CPU quota")))
    return min(quotas, key=lambda q: q.num_cpus, default=None)


def group_memory(root: Path) -> GroupMemory | None:
    """The level with the least memory left, or None when no level has a limit."""
    found = []
    for folder in _levels(root, "memory"):
        limits = [_number(folder / name) for name in ("memory.max", "memory.high", "memory.limit_in_bytes")]
        known = [limit for limit in limits if limit is not None and limit < _V1_UNLIMITED_BYTES]
        if not known:
            continue
        limit_bytes = min(known)
        used = _number(folder / "memory.current")
        if used is None:
            used = _number(folder / "memory.usage_in_bytes") or 0
        statistics = dict(zip(*[iter(_words(folder / "memory.stat"))] * 2, strict=False))
        cache = statistics.get("total_inactive_file") or statistics.get("inactive_file") or "0"
        in_use = max(0, used - (int(cache) if cache.isdigit() else 0))
        found.append(GroupMemory(limit_bytes, max(0, limit_bytes - in_use), _shown(root, folder, "memory limit")))
    return min(found, key=lambda m: m.available_bytes, default=None)


def _levels(root: Path, controller: str) -> Iterator[Path]:
    """The process's group for `controller`, then every group above it, down to the mount's root."""
    mount_root = root / "sys/fs/cgroup"
    for line in _lines(root / "proc/self/cgroup"):
        _, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        if not controllers:
            mounts = [mount_root, mount_root / "unified"]
        elif controller in controllers.split(","):
            mounts = [mount_root / controllers, mount_root / controller]
        else:
            continue
        for mount in mounts:
            if not mount.is_dir():
                continue
            folder = mount / path.lstrip("/")
            if ".." in path.split("/") or not folder.is_dir():
                folder = mount
            yield folder
            while folder != mount:
                folder = folder.parent
                yield folder
            break


def _shown(root: Path, folder: Path, what: str) -> str:
    return f"cgroup {what} (/{folder.relative_to(root)})"


def _is_count(text: str) -> bool:
    return text.isdigit() and int(text) > 0


def _number(path: Path) -> int | None:
    words = _words(path)
    return int(words[0]) if words and words[0].isdigit() else None


def _words(path: Path) -> list[str]:
    return [word for line in _lines(path) for word in line.split()]


def _lines(path: Path) -> list[str]:
    try:
        return path.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return []
