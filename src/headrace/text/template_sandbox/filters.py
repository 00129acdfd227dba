"""Filters whose result can be much larger than their input, checked against the render's budget."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from itertools import islice
from typing import Any

from jinja2 import filters, pass_context
from jinja2.runtime import Context
from jinja2.utils import _PassArg

from headrace.text.template_sandbox.limits import MAX_VALUE_CHARS, Budget, LimitError, budget_of

_MAX_INDENT = 16


def charged(function: Callable[..., Any]) -> Callable[..., Any]:
    """A Jinja filter that charges for what goes in and what comes out."""
    wants = _PassArg.from_obj(function)

    @pass_context
    def wrapped(context: Context, value: Any = None, *args: Any, **kwargs: Any) -> Any:
        budget = budget_of(context)
        if hasattr(value, "__len__"):
            budget.charge(len(value))
        if wants is _PassArg.context:
            result = function(context, value, *args, **kwargs)
        elif wants is _PassArg.eval_context:
            result = function(context.eval_ctx, value, *args, **kwargs)
        elif wants is _PassArg.environment:
            result = function(context.environment, value, *args, **kwargs)
        else:
            result = function(value, *args, **kwargs)
        if hasattr(result, "__len__"):
            budget.charge(len(result))
        return result

    return wrapped


def replaced_length(text: Any, old: Any, new: Any) -> int:
    """Length of `text.replace(old, new)` of strings or bytes, from above."""
    length: int = len(text) + text.count(old) * max(len(new) - len(old), 0)
    return length


def checked_items(budget: Budget, values: Iterable[Any], separator_length: int) -> list[Any]:
    """The items of `values`, after charging for their texts joined with a separator of that length."""
    items = list(islice(values, MAX_VALUE_CHARS + 1))
    budget.charge(len(items) * (separator_length + 1))
    for item in items:
        budget.charge_text(item)
    return items


@pass_context
def _tojson(
    context: Context,
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """JSON as Hugging Face's templates expect it: no HTML escapes, non-ASCII as is."""
    budget = budget_of(context)
    if isinstance(indent, int) and indent > _MAX_INDENT:
        raise LimitError(f"tojson takes an indent of at most {_MAX_INDENT}")
    budget.charge_text(value)
    encoder = json.JSONEncoder(ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)
    pieces: list[str] = []
    for piece in encoder.iterencode(value):
        budget.charge(len(piece))
        pieces.append(piece)
    return "".join(pieces)


@pass_context
def _join(context: Context, value: Iterable[Any], d: str = "", attribute: str | int | None = None) -> str:
    if attribute is not None:
        value = map(filters.make_attrgetter(context.environment, attribute), value)
    return str(d).join(map(str, checked_items(budget_of(context), value, len(str(d)))))


@pass_context
def _replace(context: Context, s: Any, old: str, new: str, count: int = -1) -> str:
    text = _string(context, s)
    budget_of(context).charge(replaced_length(text, str(old), str(new)))
    return text.replace(str(old), str(new), count)


@pass_context
def _indent(context: Context, s: str, width: int | str = 4, first: bool = False, blank: bool = False) -> str:
    text = str(s)
    step = width if isinstance(width, int) else len(width)
    budget_of(context).charge(len(text) + (text.count("\n") + 1) * max(step, 0))
    return filters.do_indent(text, width, first, blank)


@pass_context
def _string(context: Context, value: Any) -> str:
    budget_of(context).charge_text(value)
    return value if isinstance(value, str) else str(value)


@pass_context
def _list(context: Context, value: Iterable[Any]) -> list[Any]:
    items = list(islice(value, MAX_VALUE_CHARS + 1))
    budget_of(context).charge(len(items))
    return items


CHECKED: dict[str, Callable[..., Any]] = {
    "indent": _indent,
    "join": _join,
    "list": _list,
    "replace": _replace,
    "string": _string,
    "tojson": _tojson,
}
