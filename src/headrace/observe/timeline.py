"""Timeline: where the start of a process went, phase after phase from its exec, so that phases add up to wall time."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping


class Timeline:
    """Seconds by phase. Each phase begins where the one before it ended, the first one at `began_s`.

    began_s: a reading of `time.monotonic()`, which all processes of a machine share; None: now.
    """

    def __init__(self, began_s: float | None = None) -> None:
        self.phases: dict[str, float] = {}
        self._began_s = self._last_s = time.monotonic() if began_s is None else began_s

    @property
    def total_s(self) -> float:
        """From the beginning to the end of the last phase."""
        return self._last_s - self._began_s

    def end(self, phase: str) -> None:
        """What has passed since the last phase ended was `phase`; a name that is used twice adds up."""
        now_s = time.monotonic()
        self.phases[phase] = self.phases.get(phase, 0.0) + now_s - self._last_s
        self._last_s = now_s

    def end_measured(self, measured: Mapping[str, float]) -> None:
        """The same for phases measured elsewhere, in their order; what they leave belongs to the last of them."""
        names = list(measured)
        for name in names[:-1]:
            self.phases[name] = self.phases.get(name, 0.0) + measured[name]
            self._last_s += measured[name]
        self.end(names[-1])


def process_began_s() -> float:
    """When this process began, as a reading of `time.monotonic()`.

    The kernel tells the start of a process to a clock tick (10 ms); a process that has done nothing but start has
    computed all the while, so its processor time narrows that down.
    """
    now_s = time.monotonic()
    busy_s = time.process_time()
    try:
        with open("/proc/self/stat", encoding="ascii", errors="replace") as file:
            ticks = int(file.read().rpartition(")")[2].split()[19])
    except (OSError, ValueError, IndexError):
        return now_s - busy_s
    tick_s = 1 / os.sysconf("SC_CLK_TCK")
    longest_s = time.clock_gettime(time.CLOCK_BOOTTIME) - ticks * tick_s
    return now_s - min(max(busy_s, longest_s - tick_s), longest_s)
