"""What came out: the samples, the tables of medians, the ratios to the best peer, JSON and a plot."""

from __future__ import annotations

import json
import statistics
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from html import escape

from benchmarks.engines import Engine
from benchmarks.processes import Memory
from benchmarks.workload import PREFILL_PROMPT, Sample


@dataclass
class Results:
    """All samples: measure → engine name → samples."""

    samples: dict[str, dict[str, list[Sample]]] = field(default_factory=lambda: defaultdict(lambda: defaultdict(list)))
    memory: dict[str, dict[str, list[Memory]]] = field(default_factory=lambda: defaultdict(lambda: defaultdict(list)))

    def values(self, column: Column, engine: str) -> list[float]:
        """The column's numbers of one engine; empty when it was not measured."""
        if column.of_memory is not None:
            return [column.of_memory(m) for m in self.memory[column.measure][engine]]
        return [column.of_sample(s.value) for s in self.samples[column.measure][engine]]


@dataclass(frozen=True)
class Column:
    """A column of the table, taken from one measure."""

    title: str
    measure: str
    digits: int = 0
    smaller_is_better: bool = False
    of_sample: Callable[[float], float] = float
    of_memory: Callable[[Memory], float] | None = None


COLUMNS = (
    Column("decode, tok/s", "decode"),
    Column("prefill 1024, tok/s", "prefill"),
    Column("TTFT, s", "prefill", 2, smaller_is_better=True, of_sample=lambda rate: PREFILL_PROMPT / rate),
    Column("batch 32, tok/s", "batch"),
    Column("shared prefix, tok/s", "shared"),
    Column("cold start, s", "cold", 2, smaller_is_better=True),
    Column("RSS after 1k chat, MB", "memory", smaller_is_better=True, of_memory=lambda m: m.rss_bytes / 1e6),
    Column("PSS after 1k chat, MB", "memory", smaller_is_better=True, of_memory=lambda m: m.pss_bytes / 1e6),
    Column("peak RSS at 8k, MB", "long", smaller_is_better=True, of_memory=lambda m: m.peak_rss_bytes / 1e6),
)


def table(results: Results, engines: Sequence[Engine], missing: dict[str, str]) -> str:
    """Markdown: one line an engine, `median (smallest to largest) n` in each cell; then those that are not there."""
    columns = [c for c in COLUMNS if any(results.values(c, e.name) for e in engines)]
    rows = [["engine", *(c.title for c in columns)]]
    for engine in engines:
        cells = [_cell(results.values(c, engine.name), c, engine) for c in columns]
        rows.append([f"{engine.name} {engine.version}".strip(), *cells])
    rows += [[name, "not there", *[""] * (len(columns) - 1)] for name in missing if columns]
    lines = [_markdown(rows)]
    worst = max((s.foreign for by in results.samples.values() for ss in by.values() for s in ss), default=0.0)
    lines.append(f"\nOther processes took at most {worst:.2f} cores during a sample.")
    lines += [f"{name}: not there ({reason})" for name, reason in missing.items()]
    lines += [f"{e.name}, {measure}: failed ({text})" for e in engines for measure, text in e.failures.items()]
    return "\n".join(lines)


def ratios(results: Results, engines: Sequence[Engine]) -> str:
    """Markdown: each headrace line against the best of its rivals, column by column. Above 1 is better everywhere."""
    rows = [["measure", "headrace", "best peer", "ratio"]]
    for column in COLUMNS:
        for ours in engines:
            rivals = [e for e in engines if e.rival_of == ours.name and results.values(column, e.name)]
            mine = results.values(column, ours.name)
            if not rivals or not mine:
                continue
            choose = min if column.smaller_is_better else max
            best = choose(rivals, key=lambda e: statistics.median(results.values(column, e.name)))
            a, b = statistics.median(mine), statistics.median(results.values(column, best.name))
            ratio = b / a if column.smaller_is_better else a / b
            suffix = "" if ours.name == "headrace" else f" ({ours.name.removeprefix('headrace ')})"
            d = column.digits
            rows.append([column.title + suffix, f"{a:.{d}f}", f"{best.name} {b:.{d}f}", f"{ratio:.2f}"])
    return _markdown(rows) if len(rows) > 1 else "no peer to compare with"


def _markdown(rows: Sequence[Sequence[str]]) -> str:
    lines = ["| " + " | ".join(row) + " |" for row in rows]
    return "\n".join([lines[0], "|" + " --- |" * len(rows[0]), *lines[1:]])


def _cell(values: list[float], column: Column, engine: Engine) -> str:
    if not values:
        return "failed" if column.measure in engine.failures else "-"
    return spread(values, column.digits)


def spread(values: list[float], digits: int) -> str:
    """`median (smallest to largest) n`."""
    median, low, high = (f"{v:.{digits}f}" for v in (statistics.median(values), min(values), max(values)))
    return median if len(values) == 1 else f"{median} ({low} to {high}) n{len(values)}"


def as_json(results: Results, engines: Sequence[Engine], missing: dict[str, str], machine: dict[str, object]) -> str:
    """Every sample, for keeping."""
    return json.dumps(
        {
            "machine": machine,
            "engines": {e.name: {"version": e.version, "failures": e.failures} for e in engines},
            "missing": missing,
            "samples": {m: {n: [asdict(s) for s in ss] for n, ss in by.items()} for m, by in results.samples.items()},
            "memory": {m: {n: [asdict(x) for x in ms] for n, ms in by.items()} for m, by in results.memory.items()},
        },
        indent=1,
    )


_COLOURS = ("#1f6feb", "#c9510c", "#8250df", "#2da44e", "#6e7781", "#bf8700", "#0a7ea4", "#cf222e")
_BAR, _GAP, _LEFT, _WIDTH = 18, 34, 150, 460


def plot(results: Results, engines: Sequence[Engine], title: str) -> str:
    """An SVG: a group of bars for each column, each group scaled to its largest bar; whiskers from least to most."""
    parts: list[str] = []
    at = 54
    colours = {engine.name: _COLOURS[i % len(_COLOURS)] for i, engine in enumerate(engines)}
    for column in COLUMNS:
        measured = [(e.name, v) for e in engines if (v := results.values(column, e.name))]
        if not measured:
            continue
        largest = max(max(values) for _, values in measured) or 1.0
        better = "less is better" if column.smaller_is_better else "more is better"
        parts.append(_text(8, at, f"{column.title} ({better})", bold=True))
        at += 8
        for name, values in measured:
            median = statistics.median(values)
            length, low, high = (_WIDTH * v / largest for v in (median, min(values), max(values)))
            middle = at + _BAR / 2
            parts += [
                _text(_LEFT - 6, middle + 4, name, anchor="end"),
                f'<rect x="{_LEFT}" y="{at + 2}" width="{length:.1f}" height="{_BAR - 4}" fill="{colours[name]}"/>',
                f'<path d="M{_LEFT + low:.1f} {middle}H{_LEFT + high:.1f}" stroke="#24292f" stroke-width="1.5"/>',
                _text(_LEFT + max(length, high) + 6, middle + 4, f"{median:.{column.digits}f}"),
            ]
            at += _BAR
        at += _GAP
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{_LEFT + _WIDTH + 90}" height="{at}" '
        'font-family="sans-serif" font-size="12"><rect width="100%" height="100%" fill="#fff"/>'
    )
    return "\n".join([head, _text(8, 24, title, bold=True), *parts, "</svg>\n"])


def _text(x: float, y: float, text: str, *, anchor: str = "start", bold: bool = False) -> str:
    weight = ' font-weight="bold"' if bold else ""
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}"{weight}>{escape(text)}</text>'
