"""Numbers as people write them: `4k` tokens, `2GiB`, `on`; and back."""

from __future__ import annotations

import re
from typing import Any

# As in vLLM: a small letter is decimal, a capital one binary (1k = 1000, 1K = 1024).
_DECIMAL = {"k": 10**3, "m": 10**6, "g": 10**9, "t": 10**12}
_BINARY = {"K": 2**10, "M": 2**20, "G": 2**30, "T": 2**40}
_INTEGER = re.compile(r"([+-]?\d+(?:\.\d+)?)\s*(?:([kmgtKMGT])(iB|B)?|B)?", re.ASCII)
_YES = ("true", "yes", "on", "1")
_NO = ("false", "no", "off", "0")


def parse_integer(text: str, *, bytes_unit: bool = False) -> int:
    """An integer, with an optional suffix: 4k = 4000, 4K = 4096; for bytes also 4KiB = 4096, 4kB = 4KB = 4000.

    Raises ValueError when it is none or not whole.
    """
    match = _INTEGER.fullmatch(text.strip())
    if match is None or (not bytes_unit and text.strip().endswith("B")):
        raise ValueError(f"{text!r} is not an integer" + (" number of bytes (like 512MiB)" if bytes_unit else ""))
    digits, letter, ending = match.groups()
    factor = 1
    if letter:
        if ending == "iB":
            factor = _BINARY[letter.upper()]
        elif ending == "B":
            factor = _DECIMAL[letter.lower()]
        else:
            factor = {**_DECIMAL, **_BINARY}[letter]
    if "." not in digits:
        return int(digits) * factor
    value = float(digits) * factor
    if value != int(value):
        raise ValueError(f"{text!r} is not a whole number")
    return int(value)


def parse_number(text: str) -> float:
    """A decimal number. Raises ValueError."""
    try:
        return float(text)
    except ValueError:
        raise ValueError(f"{text!r} is not a number") from None


def parse_boolean(text: str) -> bool:
    """true/yes/on/1 or false/no/off/0, in any case. Raises ValueError."""
    lowered = text.strip().lower()
    if lowered in _YES:
        return True
    if lowered in _NO:
        return False
    raise ValueError(f"{text!r} is neither true nor false")


def format_bytes(num_bytes: int) -> str:
    """At most four digits and a binary unit: `93.8 MiB`."""
    size = float(num_bytes)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if abs(size) < 1024:
            return f"{size:.0f} {unit}" if unit == "B" else f"{size:.1f} {unit}"
        size /= 1024
    return f"{size:.1f} TiB"


def format_value(value: Any, unit: str) -> str:
    """An option's value as a person reads it."""
    if value is None:
        return "auto"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, tuple):
        return ", ".join(value) if value else "-"
    if unit == "bytes":
        return format_bytes(int(value))
    if isinstance(value, float):
        return f"{value:g}"
    return str(value)
