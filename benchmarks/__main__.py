"""`python -m benchmarks`: run the workload on headrace, and on llama.cpp when a build of it is given; print a table.

Numbers mean little while anything else runs: read the "foreign" column (cores that other processes took).
llama.cpp spins at its barriers and suffers most from neighbours.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import statistics
import sys
import tempfile
from collections import defaultdict
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path

from benchmarks import workload
from benchmarks.processes import Memory
from benchmarks.servers import Headrace, LlamaCpp, Server
from benchmarks.workload import Prompts, Sample

BUILD_VARIABLE = "HEADRACE_LLAMACPP"
MEASURES = (*workload.RATES, "cold", "memory")
UNITS = {
    "decode": "one-stream decode, tokens/s",
    "prefill": "prefill of 1,024 tokens, tokens/s",
    "batch": "32 requests at once, tokens/s",
    "cold": "cold start to first token, s",
}


@dataclass
class Results:
    """All samples: measure → server name → samples."""

    samples: dict[str, dict[str, list[Sample]]] = field(default_factory=lambda: defaultdict(lambda: defaultdict(list)))
    memory: dict[str, list[Memory]] = field(default_factory=lambda: defaultdict(list))


def main(arguments: list[str] | None = None) -> int:
    options = parse(arguments)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # so that no server is left running
    with tempfile.TemporaryDirectory(prefix="headrace-bench-") as scratch:
        log = Path(options.log or Path(scratch) / "servers.log")
        many, single = make_servers(options, log)
        try:
            results = measure(options, many, single)
        except RuntimeError as error:
            print(f"error: {error}", file=sys.stderr)
            if log.exists():
                print(log.read_text(errors="replace")[-2000:], file=sys.stderr)
            return 1
    versions = {s.name: s.version() for s in many}
    print(table(results, [s.name for s in many], versions))
    if options.json:
        Path(options.json).write_text(as_json(results, versions), encoding="utf-8")
    return 0


def parse(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("--model", default="smollm2", help="demo model's name, or a .gguf file (default: smollm2)")
    parser.add_argument(
        "--llamacpp",
        default=os.environ.get(BUILD_VARIABLE),
        metavar="DIR",
        help=f"folder llama.cpp was built in (holds bin/llama-server); default: ${BUILD_VARIABLE}",
    )
    parser.add_argument("--repeats", type=int, default=3, help="samples per measure and engine (default: 3)")
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)), help="compute threads of each")
    parser.add_argument(
        "--measures",
        type=lambda text: text.split(","),
        default=list(MEASURES),
        help=f"comma-separated, of {', '.join(MEASURES)} (default: all)",
    )
    parser.add_argument("--json", metavar="FILE", help="write every sample there too")
    parser.add_argument("--log", metavar="FILE", help="keep the servers' output there")
    options = parser.parse_args(arguments)
    unknown = set(options.measures) - set(MEASURES)
    if unknown:
        parser.error(f"unknown measures: {', '.join(sorted(unknown))}")
    return options


def make_servers(options: argparse.Namespace, log: Path) -> tuple[list[Server], list[Server]]:
    """Servers for the rates (room for 32 requests), and for cold start and memory (as one user would start them)."""
    from headrace.weights.hub import resolve_model

    model = resolve_model(options.model)
    many: list[Server] = [Headrace(model, log, options.threads)]
    single: list[Server] = [Headrace(model, log, options.threads)]
    if options.llamacpp:
        build = Path(options.llamacpp)
        many.append(LlamaCpp(build, model, log, options.threads, num_slots=workload.BATCH_SIZE))
        single.append(LlamaCpp(build, model, log, options.threads, num_slots=1))
    return many, single


def measure(options: argparse.Namespace, many: list[Server], single: list[Server]) -> Results:
    """Run the measures asked for, alternating between the servers sample by sample."""
    results = Results()
    ids = text_ids(single[0])
    prompts = {s.name: Prompts(ids) for s in many}  # every engine reads the same prompts in the same order
    if "cold" in options.measures:
        for server in workload.interleaved(single, options.repeats):
            note(results, "cold", server, workload.cold_start(server, prompts[server.name]))
    if "memory" in options.measures:
        for server in single:
            results.memory[server.name].append(workload.memory(server, prompts[server.name]))
    rates = [m for m in workload.RATES if m in options.measures]
    if not rates:
        return results
    try:
        for server in many:
            server.start()
            server.wait_until_ready()
            workload.warm_up(server, prompts[server.name])
        for name in rates:
            for server in workload.interleaved(many, options.repeats):
                note(results, name, server, workload.RATES[name](server, prompts[server.name]))
    finally:
        for server in many:
            server.stop()
    return results


def text_ids(server: Server) -> list[int]:
    """The text's ids, by headrace's tokenizer; also brings the model's file into the page cache for everyone."""
    if not isinstance(server, Headrace):
        raise TypeError("the first server must be headrace")
    server.start()
    try:
        server.wait_until_ready()
        text = workload.english_text()
        step = 50_000
        return [t for at in range(0, len(text), step) for t in server.tokenize(text[at : at + step])]
    finally:
        server.stop()


def note(results: Results, name: str, server: Server, sample: Sample) -> None:
    """Keep a sample, and say it on standard error: a run takes minutes."""
    results.samples[name][server.name].append(sample)
    print(f"{name:8} {server.name:10} {sample.value:10.2f}  foreign {sample.foreign:.2f}", file=sys.stderr, flush=True)


def table(results: Results, names: list[str], versions: dict[str, str]) -> str:
    """Markdown: median (smallest to largest) per engine, the ratio of the first to the second, foreign load."""
    ratio = [f"{names[0]} / {names[1]}"] if len(names) > 1 else []
    rows = [["measure", *(f"{n} {versions[n]}" for n in names), *ratio, "foreign, cores (worst)"]]
    for measure_, by_server in results.samples.items():
        values = {n: [s.value for s in by_server[n]] for n in names}
        foreign = max(s.foreign for samples in by_server.values() for s in samples)
        cells = [spread(values[n]) for n in names]
        rows.append([UNITS[measure_], *cells, *_ratio(ratio, values, names), f"{foreign:.2f}"])
    if results.memory:
        for label, get in MEMORY_ROWS.items():
            megabytes = {n: [get(m) / 1e6 for m in results.memory[n]] for n in names}
            rows.append([label, *(spread(megabytes[n], 0) for n in names), *_ratio(ratio, megabytes, names), ""])
    lines = ["| " + " | ".join(row) + " |" for row in rows]
    return "\n".join([lines[0], "|" + " --- |" * len(rows[0]), *lines[1:]])


MEMORY_ROWS: dict[str, Callable[[Memory], int]] = {
    "PSS after a 1,000-token chat, MB": lambda m: m.pss_bytes,
    "RSS after a 1,000-token chat, MB": lambda m: m.rss_bytes,
    "peak RSS, MB": lambda m: m.peak_rss_bytes,
}


def spread(values: list[float], digits: int = 2) -> str:
    """`median (smallest to largest)`."""
    median, low, high = statistics.median(values), min(values), max(values)
    if len(values) == 1:
        return f"{median:.{digits}f}"
    return f"{median:.{digits}f} ({low:.{digits}f} to {high:.{digits}f})"


def _ratio(wanted: list[str], values: dict[str, list[float]], names: list[str]) -> list[str]:
    if not wanted:
        return []
    return [f"{statistics.median(values[names[0]]) / statistics.median(values[names[1]]):.2f}"]


def as_json(results: Results, versions: dict[str, str]) -> str:
    """Every sample, for keeping."""
    samples = {m: {n: [asdict(s) for s in ss] for n, ss in by.items()} for m, by in results.samples.items()}
    memory = {n: [asdict(m) for m in ms] for n, ms in results.memory.items()}
    return json.dumps({"versions": versions, "samples": samples, "memory": memory}, indent=1)


if __name__ == "__main__":
    sys.exit(main())
