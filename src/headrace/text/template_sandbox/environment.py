"""The one Jinja environment: immutable, sandboxed, and bounded in time and size.

Templates come out of model files, so they are foreign code. Jinja's sandbox keeps them from reaching Python;
the rest of this file keeps them from running or growing without end: every loop iteration and macro call passes
a checkpoint written into the template when it is parsed, and every operation that can make something much
larger than its operands is checked before it runs. Filters no chat template needs are left out.
"""

from __future__ import annotations

import string
from collections.abc import Callable
from datetime import datetime
from typing import Any, NoReturn

from jinja2 import nodes, pass_context
from jinja2.exceptions import SecurityError, TemplateError
from jinja2.ext import Extension, LoopControlExtension
from jinja2.parser import Parser
from jinja2.runtime import Context
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.visitor import NodeTransformer

from headrace.text.template_sandbox import filters as checked
from headrace.text.template_sandbox.limits import (
    MAX_INTEGER_BITS,
    Budget,
    LimitError,
    bounded_range,
    budget_of,
    check_percent_format,
)

_FILTERS = (
    "abs", "attr", "capitalize", "count", "d", "default", "dictsort", "e", "escape", "first", "float", "groupby",
    "int", "items", "last", "length", "lower", "map", "max", "min", "reject", "rejectattr", "reverse", "round",
    "safe", "select", "selectattr", "sort", "title", "trim", "truncate", "unique", "upper", "urlencode", "wordcount",
)  # fmt: skip
_SHORT_LITERAL = 32
_PADDING_METHODS = frozenset({"center", "ljust", "rjust", "zfill", "expandtabs"})


class _GenerationTag(Extension):
    """`{% generation %}` marks the assistant's own tokens for training; here it is its content."""

    tags = {"generation"}  # noqa: RUF012 (Jinja's interface)

    def parse(self, parser: Parser) -> nodes.Node | list[nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


class _Checkpoints(NodeTransformer):
    """Puts a checkpoint into every loop and macro, turns `a ~ b` into a checked call, charges for slices and for
    literals that are long."""

    def visit_For(self, node: nodes.For) -> nodes.Node:  # noqa: N802 (Jinja's interface)
        return self._guarded(node)

    def visit_Macro(self, node: nodes.Macro) -> nodes.Node:  # noqa: N802
        return self._guarded(node)

    def visit_CallBlock(self, node: nodes.CallBlock) -> nodes.Node:  # noqa: N802
        return self._guarded(node)

    def visit_Concat(self, node: nodes.Concat) -> nodes.Node:  # noqa: N802
        self.generic_visit(node)
        return _call("concatenate", node.nodes, node.lineno)

    def visit_Getitem(self, node: nodes.Getitem) -> nodes.Node:  # noqa: N802
        self.generic_visit(node)
        return _call("charged", [node], node.lineno) if isinstance(node.arg, nodes.Slice) else node

    def visit_List(self, node: nodes.List) -> nodes.Node:  # noqa: N802
        self.generic_visit(node)
        return _call("charged", [node], node.lineno) if len(node.items) > _SHORT_LITERAL else node

    def visit_Dict(self, node: nodes.Dict) -> nodes.Node:  # noqa: N802
        self.generic_visit(node)
        return _call("charged", [node], node.lineno) if len(node.items) > _SHORT_LITERAL else node

    def _guarded(self, node: nodes.For | nodes.Macro | nodes.CallBlock) -> nodes.Node:
        self.generic_visit(node)
        node.body.insert(0, nodes.ExprStmt(_call("checkpoint", [], node.lineno), lineno=node.lineno))
        return node


def _call(method: str, arguments: list[nodes.Expr], lineno: int) -> nodes.Call:
    function = nodes.EnvironmentAttribute(method, lineno=lineno)
    context = nodes.ContextReference(lineno=lineno)
    return nodes.Call(function, [context, *arguments], [], None, None, lineno=lineno)


class TemplateEnvironment(ImmutableSandboxedEnvironment):
    """The template dialect of Hugging Face's `apply_chat_template`, bounded.

    Each render's context holds a Budget under the name `BUDGET`. now: the clock behind `strftime_now`.
    """

    intercepted_binops = frozenset({"*", "**", "+", "%"})

    def __init__(self, now: Callable[[], datetime]) -> None:
        super().__init__(
            trim_blocks=True,
            lstrip_blocks=True,
            extensions=[_GenerationTag, LoopControlExtension],
            finalize=_charge_output,
            cache_size=0,
        )
        self.filters = {name: checked.charged(self.filters[name]) for name in _FILTERS} | checked.CHECKED
        del self.globals["lipsum"]
        self.globals["range"] = bounded_range
        self.globals["raise_exception"] = _raise_exception
        self.globals["strftime_now"] = lambda pattern: now().strftime(_short(pattern))

    def _parse(self, source: str, name: str | None, filename: str | None) -> nodes.Template:
        parsed: nodes.Template = _Checkpoints().visit(super()._parse(source, name, filename))
        return parsed

    def checkpoint(self, context: Context) -> None:
        budget_of(context).check_time()

    def concatenate(self, context: Context, *values: Any) -> str:
        budget = budget_of(context)
        for value in values:
            budget.charge_text(value)
        return "".join(map(str, values))

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        budget = budget_of(context)
        if operator == "+":
            if hasattr(left, "__len__") and hasattr(right, "__len__"):
                budget.charge(len(left) + len(right))
        elif operator == "%":
            if isinstance(left, str):
                check_percent_format(budget, left, right)
        elif isinstance(left, int) and isinstance(right, int):
            bits = left.bit_length() * right if operator == "**" else left.bit_length() + right.bit_length()
            if bits > MAX_INTEGER_BITS:
                raise LimitError("the template builds too large a number")
        elif operator == "*":
            for many, times in ((left, right), (right, left)):
                if hasattr(many, "__len__") and isinstance(times, int):
                    budget.charge(len(many) * max(times, 0))
        return super().call_binop(context, operator, left, right)

    def charged(self, context: Context, value: Any) -> Any:
        """`value`, after charging for its length."""
        if hasattr(value, "__len__"):
            budget_of(context).charge(len(value))
        return value

    def call(__self, __context: Context, __obj: Any, *args: Any, **kwargs: Any) -> Any:  # noqa: N805
        owner = getattr(__obj, "__self__", None)
        if isinstance(owner, (str, bytes)):
            args = _checked_arguments(budget_of(__context), owner, __obj.__name__, args, kwargs)
        elif isinstance(owner, int) and __obj.__name__ == "to_bytes":
            raise SecurityError("int.to_bytes is not allowed in a template")
        return __self.charged(__context, super().call(__context, __obj, *args, **kwargs))

    def wrap_str_format(self, value: Any) -> Callable[..., str] | None:
        wrapped = super().wrap_str_format(value)
        if wrapped is not None:
            for _, _, spec, _ in string.Formatter().parse(value.__self__):
                if spec and ("{" in spec or any(len(run) > 4 for run in _digit_runs(spec))):
                    raise LimitError("the template formats with too wide a field")
        return wrapped

    def unsafe_undefined(self, obj: Any, attribute: str) -> NoReturn:
        """Raise at once: Jinja's own answer prints as nothing."""
        raise SecurityError(f"access to attribute {attribute!r} of a {type(obj).__name__} is not allowed")


def _checked_arguments(
    budget: Budget, text: str | bytes, method: str, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[Any, ...]:
    """Charge for `text.method(*args, **kwargs)`; the arguments to call it with."""
    if method == "translate":
        raise SecurityError("translate is not allowed in a template")
    if method in _PADDING_METHODS:
        width = max((a for a in (*args, *kwargs.values()) if isinstance(a, int)), default=8)
        budget.charge(len(text) * width if method == "expandtabs" else len(text) + width)
    elif method == "join" and args:
        return (checked.checked_items(budget, args[0], len(text)), *args[1:])
    elif method == "replace" and len(args) >= 2:
        budget.charge(checked.replaced_length(text, args[0], args[1]))
    return args


@pass_context
def _charge_output(context: Context, value: Any) -> Any:
    if not isinstance(value, str):
        budget_of(context).charge_text(value)
    return value


def _digit_runs(text: str) -> list[str]:
    return "".join(c if c.isdigit() else " " for c in text).split()


def _raise_exception(message: object) -> NoReturn:
    raise TemplateError(str(message))


def _short(pattern: object) -> str:
    if not isinstance(pattern, str) or len(pattern) > 100:
        raise LimitError("strftime_now takes a format of at most 100 characters")
    return pattern
