"""Budget: what one template render may still use, and the measures it is charged by."""

from __future__ import annotations

import re
import time
from collections.abc import ItemsView, KeysView, Mapping, ValuesView
from typing import Any

from jinja2 import TemplateError
from jinja2.runtime import Context
from jinja2.utils import Namespace

MAX_RANGE = 100_000
MAX_VALUE_CHARS = 1 << 23
"""Length of any one string or list a template builds: several million tokens."""
MAX_WORK_CHARS = 1 << 28
"""Sum of those lengths over one render; bounds the memory it can hold."""
MAX_INTEGER_BITS = 4096

BUDGET = "budget of this render"
"""Name of the Budget in a render's context: no identifier, so no template can read or replace it."""

_PERCENT_FIELD = re.compile(r"%(?:\([^)]*\))?([^a-zA-Z%]*)[a-zA-Z%]")
_WIDE = re.compile(r"\d{5}|\*")
_MAX_WIDTH = 10_000


class LimitError(TemplateError):
    """A template ran too long or built something too large."""


class Budget:
    """`deadline` is on the monotonic clock, in seconds."""

    def __init__(self, deadline: float) -> None:
        self._deadline = deadline
        self._work_chars = 0

    def check_time(self) -> None:
        if time.monotonic() > self._deadline:
            raise LimitError("the template ran too long")

    def charge(self, length: int) -> None:
        """Account for a value of `length` characters or entries, before it is built."""
        self._work_chars += length
        if length > MAX_VALUE_CHARS or self._work_chars > MAX_WORK_CHARS:
            raise LimitError("the template builds too large a value")
        self.check_time()

    def charge_text(self, value: Any) -> None:
        """Account for `str(value)`."""
        self.charge(len(value) if isinstance(value, str) else extent(value))


def budget_of(context: Context) -> Budget:
    budget: Budget = context.parent[BUDGET]
    return budget


def extent(value: Any) -> int:
    """About how many characters `value` prints as; more than MAX_VALUE_CHARS as soon as that is certain.

    Counts shared parts as often as they would be printed, so it also bounds the work of printing them.
    """
    total = 0
    stack = [value]
    while stack and total <= MAX_VALUE_CHARS:
        item = stack.pop()
        total += 4
        if isinstance(item, str):
            total += len(item)
        elif isinstance(item, Namespace):
            stack.append(item._Namespace__attrs)
        elif isinstance(item, (Mapping, ItemsView)):
            pairs = item.items() if isinstance(item, Mapping) else item
            for key, held in pairs:
                stack += (key, held)
            total += 2 * len(item)
        elif isinstance(item, (list, tuple, set, frozenset, KeysView, ValuesView)):
            stack.extend(item)
            total += len(item)
    return total


def bounded_range(*bounds: int) -> range:
    """`range` of at most MAX_RANGE numbers."""
    numbers = range(*bounds)
    try:
        length = len(numbers)
    except OverflowError:
        length = MAX_RANGE + 1
    if length > MAX_RANGE:
        raise LimitError(f"the template asks for a range of more than {MAX_RANGE} numbers")
    return numbers


def check_percent_format(budget: Budget, pattern: str, values: Any) -> None:
    """Charge for `pattern % values`: no field may be wider than four digits say."""
    fields = _PERCENT_FIELD.findall(pattern)
    if any(_WIDE.search(flags) for flags in fields):
        raise LimitError("the template formats with too wide a field")
    longest = max(map(extent, values.values() if isinstance(values, Mapping) else _listed(values)), default=0)
    budget.charge(len(pattern) + len(fields) * longest + sum(_MAX_WIDTH for flags in fields if flags))


def _listed(values: Any) -> tuple[Any, ...]:
    return values if isinstance(values, tuple) else (values,)
