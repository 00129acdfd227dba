"""`option()` declares one setting on a frozen dataclass; `Options` resolves, checks and explains all of them.

A value is looked for in this order: command-line flag, Python argument, environment, configuration file, default.
Where it came from is kept beside it in `sources`, so that `explain()` can say so and errors can name the place.
"""

from __future__ import annotations

import dataclasses
import functools
import logging
import math
import os
import types
import typing
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, Self

from headrace.config.human import format_value, parse_boolean, parse_integer, parse_number
from headrace.config.vllm_flags import judge_vllm_option
from headrace.core.errors import ConfigError, unknown_name_message

Source = Literal["default", "argument", "flag", "env", "file", "model", "machine"]
_METADATA_KEY = "headrace.option"


@dataclass(frozen=True, slots=True, kw_only=True)
class OptionSpec:
    """The declaration of one option. `unit` is never empty; `kind` is the type of one value."""

    name: str
    kind: type
    optional: bool
    many: bool
    default: Any
    unit: str
    help: str
    flag: str
    env: str | None
    group: str
    minimum: float | None
    maximum: float | None
    choices: tuple[str, ...] | None
    refused: Mapping[str, str]
    """Values other engines take and this one does not, with the reason."""

    @property
    def range_text(self) -> str:
        """What may be given, in words."""
        if self.choices is not None:
            return " | ".join(self.choices)
        if self.kind is bool:
            return "true | false"
        if self.minimum is None and self.maximum is None:
            return "any"
        low = "" if self.minimum is None else format_value(self.minimum, self.unit)
        high = "" if self.maximum is None else format_value(self.maximum, self.unit)
        return f"{low}..{high}"

    def parse(self, text: str) -> Any:
        """The value that `text` (a flag's, an environment variable's) stands for. Raises ConfigError."""
        if self.optional and text.lower() in ("none", ""):
            return None
        if self.many:
            return self.check(tuple(part.strip() for part in text.split(",") if part.strip()))
        try:
            if self.kind is bool:
                return self.check(parse_boolean(text))
            if self.kind is int:
                return self.check(parse_integer(text, bytes_unit=self.unit == "bytes"))
            if self.kind is float:
                return self.check(parse_number(text))
        except ValueError as error:
            raise ConfigError(f"{self.name}: {error}", param=self.name) from None
        return self.check(text)

    def check(self, value: Any) -> Any:
        """`value`, in its stored form, if it is of the right type and in range; else ConfigError."""
        if value is None and self.optional:
            return None
        if self.many:
            parts = (value,) if isinstance(value, str) else value
            if not isinstance(parts, (tuple, list)) or not all(isinstance(p, str) and p for p in parts):
                raise self._error(f"must be a name or a list of names, got {value!r}")
            return tuple(parts)
        if self.kind is float and isinstance(value, int) and not isinstance(value, bool):
            value = float(value)
        if self.kind is str and isinstance(value, os.PathLike):
            value = os.fspath(value)
        if not isinstance(value, self.kind) or (self.kind is not bool and isinstance(value, bool)):
            raise self._error(f"must be {self._kind_text()}, got {value!r}")
        if isinstance(value, str):
            return self._check_text(value)
        if isinstance(value, (int, float)) and not self._in_range(value):
            raise self._error(f"must be {self._kind_text()}, got {value}")
        return value

    def _in_range(self, value: float) -> bool:
        if not math.isfinite(value):
            return False
        above = self.minimum is None or value >= self.minimum
        return above and (self.maximum is None or value <= self.maximum)

    def _check_text(self, value: str) -> str:
        if value in self.refused:
            raise self._error(f"cannot be {value!r}: {self.refused[value]}")
        if self.choices is not None and value not in self.choices:
            raise self._error(f"must be one of {', '.join(self.choices)}, got {value!r}")
        if not value and self.default != "":
            raise self._error("must not be empty")
        return value

    def _kind_text(self) -> str:
        word = {bool: "true or false", int: "an integer", float: "a number", str: "text"}[self.kind]
        if self.kind not in (int, float):
            return word
        if self.minimum is not None and self.maximum is not None:
            low, high = (format_value(v, self.unit) for v in (self.minimum, self.maximum))
            return f"{word} from {low} to {high} ({self.unit})"
        if self.minimum is not None:
            return f"{word} of at least {format_value(self.minimum, self.unit)} ({self.unit})"
        return f"{word} ({self.unit})"

    def _error(self, text: str) -> ConfigError:
        return ConfigError(f"{self.name} {text}", param=self.name)


def option(
    default: Any,
    *,
    unit: str,
    help: str,
    flag: str | None = None,
    env: str | None = None,
    group: str = "general",
    minimum: float | None = None,
    maximum: float | None = None,
    choices: Iterable[str] | None = None,
    refused: Mapping[str, str] | None = None,
) -> Any:
    """A dataclass field that is an option. `flag` defaults to the field's name in dashes.

    `unit` is what one counts in (tokens, bytes, seconds, threads, requests) or what a text is (name, path, choice,
    switch); `minimum` and `maximum` are inclusive and in that unit.
    """
    declared = {
        "unit": unit,
        "help": help,
        "flag": flag,
        "env": env,
        "group": group,
        "minimum": minimum,
        "maximum": maximum,
        "choices": None if choices is None else tuple(choices),
        "refused": dict(refused or {}),
    }
    return field(default=default, metadata={_METADATA_KEY: declared})


@dataclass(frozen=True, slots=True)
class Resolved:
    """One option's value and where it came from."""

    value: Any
    source: Source


@dataclass(frozen=True, slots=True)
class ExplainRow:
    """One line of `explain()`: everything a person wants to know of one option, as text."""

    name: str
    value: str
    unit: str
    source: Source
    range: str
    help: str


@dataclass(frozen=True, kw_only=True)
class Options:
    """Base of the option objects. Immutable; two are equal when their values are, whatever the sources."""

    sources: dict[str, Source] = field(default_factory=dict, compare=False, repr=False)

    def __post_init__(self) -> None:
        for spec in self.specs():
            value = getattr(self, spec.name)
            checked = spec.check(value)
            if checked is not value:
                object.__setattr__(self, spec.name, checked)

    @classmethod
    def specs(cls) -> tuple[OptionSpec, ...]:
        """The declared options, in order."""
        return _specs(cls)  # type: ignore[arg-type]  # mypy sees the instances' hash, not the class's

    @classmethod
    def resolve(
        cls,
        *,
        flags: Mapping[str, Any] | None = None,
        arguments: Mapping[str, Any] | None = None,
        environ: Mapping[str, str] | None = None,
        file: Mapping[str, Any] | None = None,
    ) -> Self:
        """Take each option from the first place that has it. Names are the field names.

        `environ` is the process environment or a stand-in; only the variables that options declare are read.
        Raises ConfigError, naming the place, for unknown names and for values of a wrong type or out of range.
        """
        specs = {spec.name: spec for spec in cls.specs()}
        values: dict[str, Any] = {}
        sources: dict[str, Source] = {}
        named: tuple[tuple[Source, Mapping[str, Any]], ...] = (
            ("file", file or {}),
            ("env", _from_environment(specs, environ or {})),
            ("argument", arguments or {}),
            ("flag", flags or {}),
        )
        for source, given in named:
            for name, value in given.items():
                spec = specs.get(name)
                if spec is None:
                    raise ConfigError(unknown_name_message("option", name, specs), param=name)
                text = isinstance(value, str) and source in ("file", "env")
                try:
                    values[name] = spec.parse(value) if text else spec.check(value)
                except ConfigError as error:
                    raise ConfigError(f"{error.message}{_place(spec, source)}", param=name) from None
                sources[name] = source
        return cls(**values, sources=sources)

    @classmethod
    def from_arguments(cls, **arguments: Any) -> Self:
        """Keyword arguments, then the environment, then defaults.

        An option's name is its field's or its flag's (in underscores). vLLM's names without a meaning here are dropped
        with a logged warning or refused (ConfigError).
        """
        by_flag = {spec.flag[2:].replace("-", "_"): spec.name for spec in cls.specs()}
        arguments = {by_flag.get(name, name): value for name, value in arguments.items()}
        names = set(by_flag.values())
        for name in [name for name in arguments if name not in names]:
            warning = judge_vllm_option(name, arguments[name])
            if warning is not None:
                logging.getLogger("headrace").warning("%s", warning)
                del arguments[name]
        return cls.resolve(arguments=arguments, environ=os.environ)

    def source(self, name: str) -> Source:
        """Where `name`'s value came from."""
        return self.sources.get(name, "default")

    def resolved(self) -> dict[str, Resolved]:
        """Every option's value with its source."""
        return {spec.name: Resolved(getattr(self, spec.name), self.source(spec.name)) for spec in self.specs()}

    def with_value(self, name: str, value: Any, source: Source) -> Self:
        """A copy with one option decided: by the model's file, by what the machine grants."""
        return dataclasses.replace(self, **{name: value}, sources={**self.sources, name: source})

    def explain(self) -> list[ExplainRow]:
        """One row per option, in declaration order."""
        return [
            ExplainRow(
                name=spec.name,
                value=format_value(getattr(self, spec.name), spec.unit),
                unit=spec.unit,
                source=self.source(spec.name),
                range=spec.range_text,
                help=spec.help,
            )
            for spec in self.specs()
        ]


def _from_environment(specs: Mapping[str, OptionSpec], environ: Mapping[str, str]) -> dict[str, str]:
    return {name: environ[spec.env] for name, spec in specs.items() if spec.env and environ.get(spec.env)}


def _place(spec: OptionSpec, source: Source) -> str:
    places = {"file": " (in the configuration file)", "env": f" (from {spec.env})", "flag": f" (from {spec.flag})"}
    return places.get(source, "")


@functools.cache
def _specs(cls: type[Options]) -> tuple[OptionSpec, ...]:
    hints = typing.get_type_hints(cls)
    specs = []
    for declared in dataclasses.fields(cls):
        metadata = declared.metadata.get(_METADATA_KEY)
        if metadata is None:
            continue
        kind, optional, many = _shape(hints[declared.name])
        flag = metadata["flag"] or "--" + declared.name.replace("_", "-")
        specs.append(
            OptionSpec(
                name=declared.name,
                kind=kind,
                optional=optional,
                many=many,
                default=declared.default,
                **{**metadata, "flag": flag},
            )
        )
    return tuple(specs)


def _shape(hint: Any) -> tuple[type, bool, bool]:
    """(type of one value, may be None, takes several) of a field's annotation."""
    optional = False
    if typing.get_origin(hint) in (types.UnionType, typing.Union):
        members = [m for m in typing.get_args(hint) if m is not type(None)]
        optional = len(members) < len(typing.get_args(hint))
        hint = members[0]
    if typing.get_origin(hint) is tuple:
        return typing.get_args(hint)[0], optional, True
    return hint, optional, False
