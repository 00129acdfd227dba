"""What a fetch tells whoever waits for it."""

from __future__ import annotations

from collections.abc import Callable

Progress = Callable[[str, int, int], None]
"""Called as progress(stage, done_bytes, total_bytes); total 0 means unknown. Stages: download, extract, verify."""


def silent(stage: str, done_bytes: int, total_bytes: int) -> None:
    """The Progress of callers who do not care."""
