"""Prometheus text format 0.0.4, written directly: counters, gauges and histograms are a few lines of text each.

Source: https://prometheus.io/docs/instrumenting/exposition_formats/
"""

from __future__ import annotations

import bisect
import itertools
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"

Kind = Literal["counter", "gauge", "histogram"]
Labels = Mapping[str, str]


class Histogram:
    """Counts by upper bound. `bounds` ascend; what is above the last one counts under +Inf."""

    __slots__ = ("bounds", "count", "counts", "sum")

    def __init__(self, bounds: Sequence[float]) -> None:
        self.bounds = tuple(bounds)
        self.counts = [0] * (len(self.bounds) + 1)
        self.count = 0
        self.sum = 0.0

    def observe(self, value: float, times: int = 1) -> None:
        """Count `value`, `times` times over."""
        self.counts[bisect.bisect_left(self.bounds, value)] += times
        self.count += times
        self.sum += value * times


@dataclass(frozen=True, slots=True)
class Family:
    """One metric with its samples. A counter's `name` ends in `_total`."""

    name: str
    kind: Kind
    help: str
    samples: Sequence[tuple[Labels, float | Histogram]]

    def renamed(self, name: str) -> Family:
        return Family(name, self.kind, self.help, self.samples)


def render(families: Iterable[Family], labels: Labels) -> str:
    """The text of a scrape; `labels` are on every sample."""
    lines: list[str] = []
    for family in families:
        lines.append(f"# HELP {family.name} {_escape(family.help)}")
        lines.append(f"# TYPE {family.name} {family.kind}")
        for own, value in family.samples:
            every = {**labels, **own}
            if isinstance(value, Histogram):
                lines += _histogram_lines(family.name, every, value)
            else:
                lines.append(f"{family.name}{_labels(every)} {_number(value)}")
    return "\n".join(lines) + "\n"


def _histogram_lines(name: str, labels: Labels, histogram: Histogram) -> list[str]:
    bounds = (*histogram.bounds, math.inf)
    totals = itertools.accumulate(histogram.counts)
    lines = [f"{name}_bucket{_labels({**labels, 'le': _number(b)})} {n}" for b, n in zip(bounds, totals, strict=True)]
    lines.append(f"{name}_sum{_labels(labels)} {_number(histogram.sum)}")
    lines.append(f"{name}_count{_labels(labels)} {histogram.count}")
    return lines


def _labels(labels: Labels) -> str:
    if not labels:
        return ""
    return "{" + ",".join(f'{k}="{_escape(v, quote=True)}"' for k, v in labels.items()) + "}"


def _escape(text: str, *, quote: bool = False) -> str:
    text = text.replace("\\", "\\\\").replace("\n", "\\n")
    return text.replace('"', '\\"') if quote else text


def _number(value: float) -> str:
    if math.isinf(value):
        return "+Inf" if value > 0 else "-Inf"
    return repr(float(value))
