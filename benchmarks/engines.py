"""Which engines take part, and in which measures."""

from __future__ import annotations

import platform
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from benchmarks.peers.genai import OpenVino
from benchmarks.peers.llamacpp import LlamaCpp
from benchmarks.servers import Headrace, NotThereError, Purpose, Server
from benchmarks.workload import BATCH_SIZE

ALL = ("decode", "prefill", "batch", "shared", "cold", "memory", "long")
ONE_STREAM = ("decode", "prefill")
MANY = ("batch", "shared")


@dataclass
class Engine:
    """A line of the table. `rival_of`: the headrace line it is compared with. `failures`: measure → what happened."""

    name: str
    make: Callable[[Purpose], Server]
    measures: tuple[str, ...] = ALL
    rival_of: str = ""
    version: str = ""
    failures: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Places:
    """Where things are: the demo model, an optional 4-bit file for a second comparison, the peers' folder."""

    model: Path
    model_4bit: Path | None
    peers: Path
    llamacpp: Path
    log: Path
    num_threads: int


def engines(places: Places, wanted: set[str] | None = None) -> tuple[list[Engine], dict[str, str]]:
    """Those that are there, headrace first; and name → reason of those that are not."""
    found: list[Engine] = []
    missing: dict[str, str] = {}
    for engine in _known(places):
        if wanted is not None and engine.name not in wanted and engine.name != "headrace":
            continue
        try:
            engine.version = engine.make(Purpose.RATES).version()
        except NotThereError as error:
            missing[engine.name] = str(error)
        else:
            found.append(engine)
    return found, missing


def _known(places: Places) -> list[Engine]:
    log, threads = places.log, places.num_threads
    no_cache = ("--cache-ram", "0")

    def headrace(name: str, model: Path, isa: str | None = None) -> Callable[[Purpose], Server]:
        return lambda purpose: Headrace(name, model, log, threads, purpose, isa=isa)

    def llamacpp(
        name: str, build: Path, model: Path, *options: str, num_slots: int = BATCH_SIZE
    ) -> Callable[[Purpose], Server]:
        return lambda purpose: LlamaCpp(name, build, model, log, threads, purpose, options=options, num_slots=num_slots)

    model, builds = places.model, places.peers / "build"
    python = places.peers / "v" / "ov" / "bin" / "python"
    known = [
        Engine("headrace", headrace("headrace", model)),
        Engine("llama.cpp", llamacpp("llama.cpp", places.llamacpp, model, *no_cache), rival_of="headrace"),
        # Its flash attention aborts with several slots on this model, so many requests are asked without it.
        Engine(
            "ik_llama.cpp",
            llamacpp("ik_llama.cpp", builds / "ik", model, num_slots=1),
            measures=tuple(m for m in ALL if m not in MANY),
            rival_of="headrace",
        ),
        Engine(
            "ik_llama.cpp -no-fa",
            llamacpp("ik_llama.cpp -no-fa", builds / "ik", model, "-no-fa"),
            MANY,
            rival_of="headrace",
        ),
        Engine(
            "OpenVINO",
            lambda purpose: OpenVino(python, model, log, threads, purpose),
            measures=tuple(m for m in ALL if m != "long"),
            rival_of="headrace",
        ),
    ]
    if platform.machine() == "x86_64":
        ours, theirs = "headrace avx2", "llama.cpp avx2"
        known += [
            Engine(ours, headrace(ours, model, "avx2"), ONE_STREAM),
            Engine(theirs, llamacpp(theirs, builds / "lcpp_avx2", model, *no_cache), ONE_STREAM, rival_of=ours),
        ]
    if places.model_4bit is not None:
        ours, theirs = "headrace 4-bit", "ik_llama.cpp 4-bit"
        known += [
            Engine(ours, headrace(ours, places.model_4bit), ONE_STREAM),
            Engine(
                theirs,
                llamacpp(theirs, builds / "ik", places.model_4bit, "-rtr", num_slots=1),
                ONE_STREAM,
                rival_of=ours,
            ),
        ]
    return known
