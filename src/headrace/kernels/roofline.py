"""What this machine can give at best: read bandwidth and arithmetic peaks, measured once, kept in the cache folder."""

from __future__ import annotations

import json
import os
import platform
import tempfile
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

from headrace import _native
from headrace.core.errors import ConfigError
from headrace.weights.hub.cache import cache_dir

FILE_NAME = "roofline.json"
VERSION = 1
_MIB = 1 << 20
READ_SIZES = (_MIB // 2, 3 * _MIB // 2, 4 * _MIB, 16 * _MIB, 32 * _MIB, 96 * _MIB, 256 * _MIB, 1024 * _MIB)
_PROBE_S = 0.05
_FREE_SHARE = 4
"""The largest working set is at most one part in so many of the memory that is free."""


@dataclass(frozen=True, slots=True)
class Machine:
    """What the figures hold for: another processor, kernel level or number of threads is measured anew."""

    cpu: str
    isa: str
    num_threads: int


@dataclass(frozen=True, slots=True)
class Roofline:
    """The limits with all threads at work; 0 where the level has no such instructions.

    read_gb_s: 10^9 bytes per second from the largest working set. The peaks count multiplications and additions, 10^9
    per second: on registers, and for q4_ceiling from L1 with a scale and a minimum per group of 32 inputs, which is
    the least work that the q4 format allows. read: working set in bytes → threads → GB/s.
    """

    machine: Machine
    read_gb_s: float
    int8_gops: float
    q4_ceiling_gops: float
    bf16_gflops: float
    f32_gflops: float
    read: dict[int, dict[int, float]]
    one_thread: dict[str, float]

    def read_at(self, num_bytes: int) -> float:
        """GB/s with all threads for a working set of about that size: that of the nearest one measured above it."""
        larger = [size for size in sorted(self.read) if size >= num_bytes]
        return self.read[larger[0] if larger else max(self.read)][self.machine.num_threads]


def this_machine(isa: str, num_threads: int) -> Machine:
    """The identity that figures are kept under."""
    return Machine(_cpu_name(), isa, num_threads)


def roofline(
    isa: str, num_threads: int, *, fresh: bool = False, progress: Callable[[str], None] | None = None
) -> Roofline:
    """The kept figures when they are of this machine; else measured now (some 10 s) and kept."""
    machine = this_machine(isa, num_threads)
    kept = None if fresh else load(machine)
    if kept is not None:
        return kept
    measured = measure(machine, progress=progress)
    save(measured)
    return measured


def load(machine: Machine) -> Roofline | None:
    """What the cache folder holds of this machine; None when that is nothing, or nothing readable."""
    try:
        content = json.loads((cache_dir() / FILE_NAME).read_text(encoding="utf-8"))
        if content["version"] != VERSION or content["machine"] != asdict(machine):
            return None
        peaks = {name: float(content[name]) for name in _PEAKS}
        read = {int(size): {int(n): float(rate) for n, rate in by.items()} for size, by in content["read"].items()}
        one = {name: float(value) for name, value in content["one_thread"].items()}
        return Roofline(machine, float(content["read_gb_s"]), **peaks, read=read, one_thread=one)
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None


def save(measured: Roofline) -> None:
    """Keep them for later commands. Raises ConfigError when the cache folder cannot be written."""
    folder = cache_dir()
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile("w", dir=folder, prefix=".roofline-", delete=False, encoding="utf-8") as file:
            json.dump(as_json(measured), file, indent=1)
        os.replace(file.name, folder / FILE_NAME)
    except OSError as error:
        raise ConfigError(f"cannot write {folder / FILE_NAME} ({error.strerror}); set HEADRACE_CACHE") from error


def as_json(measured: Roofline) -> dict[str, object]:
    """The content of the file."""
    return {"version": VERSION, **asdict(measured)}


_PEAKS = {"int8_gops": "int8", "q4_ceiling_gops": "q4", "bf16_gflops": "bf16", "f32_gflops": "f32"}


def measure(
    machine: Machine,
    *,
    sizes: tuple[int, ...] = READ_SIZES,
    seconds: float = _PROBE_S,
    progress: Callable[[str], None] | None = None,
) -> Roofline:
    """Measure now. Other load on the machine lowers the figures: each is the best of several tries."""
    say = progress or _silent
    counts = sorted({1, machine.num_threads})
    peaks: dict[int, dict[str, float]] = {}
    for count in counts:
        peaks[count] = {}
        for name, kind in _PEAKS.items():
            say(f"{kind}, {count} threads")
            peaks[count][name] = _native.probe_compute(machine.isa, kind, count, seconds)
    sizes = tuple(size for size in sizes if size <= _largest_bytes()) or sizes[:1]
    read: dict[int, dict[int, float]] = {size: {} for size in sizes}
    for count in counts:
        say(f"reading memory, {count} threads")
        fitting = [size for size in sizes if size >= 256 * count]
        for size, rate in zip(fitting, _native.probe_read(machine.isa, fitting, count, seconds), strict=True):
            read[size][count] = rate
    return Roofline(
        machine, read[max(sizes)][machine.num_threads], **peaks[machine.num_threads], read=read, one_thread=peaks[1]
    )


def _silent(_text: str) -> None:
    """No progress is wanted."""


def _largest_bytes() -> int:
    """A working set that leaves the machine's other work alone."""
    return os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") // _FREE_SHARE


def _cpu_name() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        lines = []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor() or platform.machine()
