"""IntegrityError: the books do not balance. Always a bug in headrace, never the caller's input."""

from __future__ import annotations


class IntegrityError(RuntimeError):
    """An invariant of the cache or the scheduler is broken; going on could mix up requests' tokens."""


def require(holds: bool, message: str) -> None:
    """Raise IntegrityError with `message` unless `holds`."""
    if not holds:
        raise IntegrityError(message)
