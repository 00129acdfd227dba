"""Plain text tables."""

from __future__ import annotations

from collections.abc import Collection, Sequence


def render_table(columns: Sequence[str], rows: Sequence[Sequence[str]], *, right: Collection[str] = ()) -> str:
    """Columns as wide as their widest cell, two spaces apart; those named in `right` are set flush right."""
    widths = [max(len(name), *(len(row[i]) for row in rows), 0) for i, name in enumerate(columns)]

    def line(cells: Sequence[str]) -> str:
        padded = [
            cell.rjust(width) if name in right else cell.ljust(width)
            for name, cell, width in zip(columns, cells, widths, strict=True)
        ]
        return "  ".join(padded).rstrip()

    return "\n".join([line(columns), line(["-" * width for width in widths]), *(line(row) for row in rows)])
