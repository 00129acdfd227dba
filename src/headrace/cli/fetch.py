"""Making sure a model is on this machine, with a progress line for whoever waits."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import TextIO

from headrace.config.engine import EngineConfig
from headrace.config.human import format_bytes

_REDRAW_S = 0.1
_BAR_CELLS = 28


class ProgressLine:
    """One line on a terminal, redrawn in place; on anything else one plain line per stage."""

    def __init__(self, stream: TextIO | None = None, clock: Callable[[], float] = time.monotonic) -> None:
        self._stream = sys.stderr if stream is None else stream
        self._clock = clock
        self._terminal = self._stream.isatty()
        self._stage = ""
        self._drawn_s = float("-inf")
        self._width = 0

    def __call__(self, stage: str, done_bytes: int, total_bytes: int) -> None:
        """Show that `done_bytes` of `total_bytes` (0: unknown) are done."""
        now = self._clock()
        complete = 0 < total_bytes <= done_bytes
        if not self._terminal:
            if stage != self._stage:
                size = f" ({format_bytes(total_bytes)})" if total_bytes else ""
                print(f"{stage} the model{size}", file=self._stream, flush=True)
        elif stage != self._stage or complete or now - self._drawn_s >= _REDRAW_S:
            self._drawn_s = now
            text = f"{stage:<9} {_bar(done_bytes, total_bytes)} {format_bytes(done_bytes)}"
            if total_bytes:
                text += f" of {format_bytes(total_bytes)}"
            self._stream.write("\r" + text.ljust(self._width))
            self._stream.flush()
            self._width = len(text)
        self._stage = stage

    def close(self) -> None:
        """Wipe the line."""
        if self._width:
            self._stream.write("\r" + " " * self._width + "\r")
            self._stream.flush()
            self._width = 0


def _bar(done: int, total: int) -> str:
    filled = min(_BAR_CELLS, _BAR_CELLS * done // total) if total else 0
    return "[" + "#" * filled + "." * (_BAR_CELLS - filled) + "]"


def fetch_model(config: EngineConfig) -> Path:
    """The model's path, after fetching the demo model if it was not there. Raises ConfigError or ModelFileError."""
    from headrace.weights.hub import resolve_model

    progress = ProgressLine()
    try:
        return resolve_model(config.model, config.revision, progress)
    finally:
        progress.close()
