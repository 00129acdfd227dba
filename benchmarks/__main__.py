"""`python -m benchmarks`: run the workload on headrace and on every peer that is there, interleaved; print the tables.

Numbers mean little while anything else runs: read the line on other processes. llama.cpp spins at its barriers and
suffers most from neighbours.
"""

from __future__ import annotations

import argparse
import datetime
import functools
import os
import platform
import signal
import sys
import tempfile
import time
from pathlib import Path

from benchmarks import report, workload
from benchmarks.engines import ALL, Engine, Places, engines
from benchmarks.report import Results
from benchmarks.servers import Headrace, Purpose, Server
from benchmarks.workload import Prompts

PEERS_VARIABLE, LLAMACPP_VARIABLE = "HEADRACE_PEERS", "HEADRACE_LLAMACPP"


def main(arguments: list[str] | None = None) -> int:
    options = parse(arguments)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # so that no server is left running
    with tempfile.TemporaryDirectory(prefix="headrace-bench-") as scratch:
        log = Path(options.log or Path(scratch) / "servers.log").absolute()
        taking_part, missing = engines(places(options, log), options.engines)
        for name, reason in missing.items():
            print(f"{name}: not there ({reason})", file=sys.stderr)
        machine = describe_machine(options.threads)
        try:
            results = measure(taking_part, options.measures, options.repeats, options.cap, options.tries)
        except RuntimeError as error:
            print(f"error: {error}", file=sys.stderr)
            if log.exists():
                print(log.read_text(errors="replace")[-2000:], file=sys.stderr)
            return 1
    print(f"{machine['date']}, {machine['cpu']}, {machine['num_threads']} threads\n")
    print(report.table(results, taking_part, missing))
    print("\n" + report.ratios(results, taking_part))
    if options.json:
        Path(options.json).write_text(report.as_json(results, taking_part, missing, machine), encoding="utf-8")
    if options.plot:
        title = f"{Path(options.model).stem}, {machine['cpu']}, {machine['num_threads']} threads, {machine['date']}"
        Path(options.plot).write_text(report.plot(results, taking_part, title), encoding="utf-8")
    return 0


def parse(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    add = parser.add_argument
    add("--model", default="smollm2", help="demo model's name, or a .gguf file (default: smollm2)")
    add("--model-4bit", metavar="FILE", help="a Q4_0 .gguf file: adds headrace and ik_llama.cpp (repacked) on it")
    peers = os.environ.get(PEERS_VARIABLE, "~/.cache/headrace-peers")
    add("--peers", default=peers, metavar="DIR", help=f"made by build_peers.sh (${PEERS_VARIABLE}; default: {peers})")
    llamacpp = os.environ.get(LLAMACPP_VARIABLE)
    add("--llamacpp", default=llamacpp, metavar="DIR", help=f"another build folder of llama.cpp (${LLAMACPP_VARIABLE})")
    add("--repeats", type=int, default=5, help="samples per measure and engine (default: 5)")
    add("--cap", type=float, default=40.0, help="seconds of samples per measure and engine; at least one (default: 40)")
    add("--tries", type=int, default=2, help="takes of a sample that other processes disturb (default: 2)")
    add("--threads", type=int, default=len(os.sched_getaffinity(0)), help="compute threads of each")
    names = f"comma-separated, of {', '.join(ALL)} (default: all)"
    add("--measures", type=lambda text: text.split(","), default=list(ALL), help=names)
    add("--engines", type=lambda text: set(text.split(",")), help="comma-separated names; headrace is always there")
    add("--json", metavar="FILE", help="write every sample there")
    add("--plot", metavar="FILE", help="write the medians there as an SVG")
    add("--log", metavar="FILE", help="keep the servers' output there")
    options = parser.parse_args(arguments)
    unknown = set(options.measures) - set(ALL)
    if unknown:
        parser.error(f"unknown measures: {', '.join(sorted(unknown))}")
    return options


def places(options: argparse.Namespace, log: Path) -> Places:
    """Where the options say that things are."""
    from headrace.weights.hub import resolve_model

    peers = Path(options.peers).expanduser().absolute()
    return Places(
        model=resolve_model(options.model).absolute(),
        model_4bit=Path(options.model_4bit).absolute() if options.model_4bit else None,
        peers=peers,
        llamacpp=Path(options.llamacpp).absolute() if options.llamacpp else peers / "build" / "lcpp",
        log=log,
        num_threads=options.threads,
    )


def describe_machine(num_threads: int) -> dict[str, object]:
    """What a reader must know of the machine."""
    lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    today = datetime.datetime.now(datetime.UTC).date().isoformat()
    cpu = names[0] if names else platform.machine()
    return {"date": today, "cpu": cpu, "num_threads": num_threads, "kernel": platform.release()}


def measure(taking_part: list[Engine], measures: list[str], repeats: int, cap_s: float, tries: int = 1) -> Results:
    """Run the measures asked for, alternating between the engines sample by sample.

    An engine that fails is left out of that measure and said so. RuntimeError when headrace itself fails.
    """
    results = Results()
    run = _Run(results, repeats, cap_s, tries)
    prompts = text_ids(taking_part[0].make(Purpose.SINGLE))
    for engine in taking_part:
        run.prompts[engine.name] = Prompts(prompts)  # every engine reads the same prompts in the same order
    single = {e.name: e.make(Purpose.SINGLE) for e in taking_part}
    if "cold" in measures:
        run.samples("cold", taking_part, single)
    for name in workload.MEMORY:
        if name in measures:
            purpose = Purpose.LONG if name == "long" else Purpose.SINGLE
            run.memory(name, taking_part, {e.name: e.make(purpose) for e in taking_part})
    rates = [m for m in workload.RATES if m in measures]
    if rates:
        run.rates(rates, taking_part, {e.name: e.make(Purpose.RATES) for e in taking_part})
    return results


class _Run:
    """The state of one run: results, prompts left, seconds spent."""

    def __init__(self, results: Results, repeats: int, cap_s: float, tries: int) -> None:
        self.prompts: dict[str, Prompts] = {}
        self._results, self._repeats, self._cap_s, self._tries = results, repeats, cap_s, tries

    def rates(self, names: list[str], taking_part: list[Engine], servers: dict[str, Server]) -> None:
        """Start all, measure, stop all."""
        try:
            for engine in taking_part:
                first = next((name for name in names if name in engine.measures), None)
                if first is None:
                    continue
                with _Failures(engine, first):
                    self._start(servers[engine.name])
            for name in names:
                self.samples(name, taking_part, servers)
        finally:
            for server in servers.values():
                server.stop()

    def samples(self, name: str, taking_part: list[Engine], servers: dict[str, Server]) -> None:
        """`repeats` samples of each engine, fewer when they take longer than the cap."""
        spent_s = dict.fromkeys((e.name for e in taking_part), 0.0)
        take = workload.cold_start if name == "cold" else workload.RATES[name]
        for engine in workload.interleaved(taking_part, self._repeats):
            if name not in engine.measures or name in engine.failures or spent_s[engine.name] > self._cap_s:
                continue
            server, begin_s = servers[engine.name], time.monotonic()
            with _Failures(engine, name):
                if name != "cold" and server.pid == 0:  # it failed at the measure before
                    self._start(server)
                prompts = self.prompts[engine.name]
                sample = workload.quietest(functools.partial(take, server, prompts), self._tries)
                self._results.samples[name][engine.name].append(sample)
                _say(f"{name:8} {engine.name:20} {sample.value:10.2f}  foreign {sample.foreign:.2f}")
            if name in engine.failures:
                server.stop()
            spent_s[engine.name] += time.monotonic() - begin_s

    def _start(self, server: Server) -> None:
        try:
            server.start()
            server.wait_until_ready()
            workload.warm_up(server, self.prompts[server.name])
        except RuntimeError:
            server.stop()
            raise

    def memory(self, name: str, taking_part: list[Engine], servers: dict[str, Server]) -> None:
        """Once each: memory hardly varies."""
        for engine in taking_part:
            if name in engine.measures:
                with _Failures(engine, name):
                    memory = workload.MEMORY[name](servers[engine.name], self.prompts[engine.name])
                    self._results.memory[name][engine.name].append(memory)
                    _say(f"{name:8} {engine.name:20} peak RSS {memory.peak_rss_bytes / 1e6:.0f} MB")


class _Failures:
    """Notes a peer's failure instead of ending the run; headrace's own ends it."""

    def __init__(self, engine: Engine, measure: str) -> None:
        self._engine, self._measure = engine, measure

    def __enter__(self) -> None:
        pass

    def __exit__(self, _kind: object, error: BaseException | None, _trace: object) -> bool:
        if not isinstance(error, RuntimeError) or self._engine.name == "headrace":
            return False
        self._engine.failures[self._measure] = str(error)
        _say(f"{self._measure:8} {self._engine.name:20} failed: {error}")
        return True


def text_ids(server: Server) -> list[int]:
    """The text's ids, by headrace's tokenizer; also brings the model's file into the page cache for everyone."""
    if not isinstance(server, Headrace):
        raise TypeError("the first engine must be headrace")
    server.start()
    try:
        server.wait_until_ready()
        text = workload.english_text()
        step = 50_000
        return [t for at in range(0, len(text), step) for t in server.tokenize(text[at : at + step])]
    finally:
        server.stop()


def _say(text: str) -> None:
    """On standard error, as it comes: a run takes minutes."""
    print(text, file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
