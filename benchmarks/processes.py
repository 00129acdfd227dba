"""What a tree of processes costs: memory, and how much of the machine others took during a measurement (Linux)."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Self

_INTERVAL_S = 0.1
_PROC = Path("/proc")


def tree(pid: int) -> list[int]:
    """`pid` and all its descendants."""
    children: dict[int, list[int]] = {}
    for entry in _PROC.iterdir():
        if entry.name.isdigit():
            stat = _stat(int(entry.name))
            if stat is not None:
                children.setdefault(int(stat[1]), []).append(int(entry.name))
    found, left = [], [pid]
    while left:
        at = left.pop()
        found.append(at)
        left += children.get(at, [])
    return found


def _stat(pid: int) -> list[str] | None:
    """The fields of /proc/PID/stat after the name: state, parent, …"""
    try:
        return (_PROC / str(pid) / "stat").read_text().rsplit(")", 1)[1].split()
    except OSError:
        return None


def _rollup(pid: int) -> dict[str, int]:
    """Bytes by name from /proc/PID/smaps_rollup."""
    try:
        lines = (_PROC / str(pid) / "smaps_rollup").read_text().splitlines()[1:]
    except OSError:
        return {}
    return {name: int(rest.split()[0]) << 10 for name, _, rest in (line.partition(":") for line in lines)}


@dataclass(frozen=True)
class Memory:
    """Bytes, summed over a process tree. Pages that several share count once in PSS and in each in RSS."""

    pss_bytes: int
    rss_bytes: int
    peak_rss_bytes: int


class PeakMemory:
    """Watches the memory of a process tree while a `with` block runs."""

    def __init__(self, pid: int) -> None:
        self._pid = pid
        self._peak_bytes = 0
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()

    def _watch(self) -> None:
        page_bytes = os.sysconf("SC_PAGE_SIZE")
        while not self._stop.wait(_INTERVAL_S):
            stats = [_stat(pid) for pid in tree(self._pid)]
            # the 24th field of stat, counted from the pid, is the resident set in pages
            self._peak_bytes = max(self._peak_bytes, sum(int(s[21]) * page_bytes for s in stats if s is not None))

    def now(self) -> Memory:
        """PSS and RSS at this moment, and RSS's peak so far."""
        parts = [_rollup(pid) for pid in tree(self._pid)]
        rss_bytes = sum(p.get("Rss", 0) for p in parts)
        return Memory(sum(p.get("Pss", 0) for p in parts), rss_bytes, max(self._peak_bytes, rss_bytes))


def _busy_s() -> float:
    """Seconds all processors have been busy; time stolen by the host counts."""
    fields = [int(x) for x in (_PROC / "stat").read_text().splitlines()[0].split()[1:9]]
    user, nice, system, _idle, _iowait, irq, softirq, steal = fields
    return (user + nice + system + irq + softirq + steal) / os.sysconf("SC_CLK_TCK")


def _own_s(pids: set[int]) -> float:
    total = 0
    for pid in pids:
        stat = _stat(pid)
        if stat is not None:
            total += sum(int(x) for x in stat[11:15])
    return total / os.sysconf("SC_CLK_TCK")


def foreign_share(run: Callable[[], object], server_pid: Callable[[], int]) -> float:
    """Run it; the mean number of cores that processes other than ours and the server's tree took meanwhile."""

    def own_s() -> float:
        return _own_s({os.getpid(), *tree(server_pid())} if server_pid() else {os.getpid()})

    busy_before_s, own_before_s, begin_s = _busy_s(), own_s(), time.perf_counter()
    run()
    seconds = time.perf_counter() - begin_s
    foreign_s = (_busy_s() - busy_before_s) - (own_s() - own_before_s)
    return max(0.0, foreign_s / seconds)
