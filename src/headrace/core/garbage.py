"""Cyclic garbage collection around a start: none while a process starts, and none of what it has started with.

Starting makes some hundred thousand objects that stay; collecting among them costs time at the start and again with
every full collection. References counted to zero are freed at once in any case.
"""

from __future__ import annotations

import gc

_THRESHOLDS = (10_000, 10, 10)
"""Allocations that make a young, and collections that make an older, collection. A step makes a few hundred objects,
hardly any of them part of a cycle."""


def pause_collection() -> None:
    """No collections until `resume_collection`."""
    gc.disable()


def resume_collection() -> None:
    """Collect again, but never what exists now."""
    gc.freeze()
    gc.set_threshold(*_THRESHOLDS)
    gc.enable()
