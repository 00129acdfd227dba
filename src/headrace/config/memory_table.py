"""The memory table as text, for the banner at start and for refusals."""

from __future__ import annotations

from collections.abc import Sequence

from headrace.config.human import format_bytes
from headrace.core.stats import MemoryLine

_COLUMNS = ("reserved", "committed", "resident")


def memory_table(lines: Sequence[MemoryLine], *, planned: bool = False) -> list[str]:
    """A row per line and their sum. `planned`: nothing is allocated yet, so only what would be reserved is shown."""
    columns = _COLUMNS[:1] if planned else _COLUMNS
    sizes = [[getattr(line, f"{column}_bytes") for column in columns] for line in lines]
    names = ["memory", *(line.name for line in lines), "sum"]
    sums = [sum(column) for column in zip(*sizes, strict=True)]
    cells = [list(columns), *([format_bytes(size) for size in row] for row in [*sizes, sums])]
    notes = ["", *(line.note for line in lines), ""]
    name_width = max(map(len, names))
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    return [
        "  ".join(["", name.ljust(name_width), *map(str.rjust, row, widths), note]).rstrip()
        for name, row, note in zip(names, cells, notes, strict=True)
    ]
