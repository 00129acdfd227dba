"""Command lines: options declared once (config/) become flags; vLLM's names are understood; typing errors are named."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable, Sequence
from typing import Any, NoReturn, TypeVar

from headrace.config.engine import EngineConfig
from headrace.config.file import read_config_file, split_options
from headrace.config.human import format_value
from headrace.config.options import Options, OptionSpec
from headrace.config.server import ServerConfig
from headrace.config.vllm_flags import SHORT_FLAGS, judge_vllm_option, vllm_flags
from headrace.core.errors import ConfigError, unknown_name_message

OptionsT = TypeVar("OptionsT", bound=Options)
_GROUPS = {
    "model": "the model",
    "limits": "limits",
    "memory": "memory and cache",
    "machine": "the machine",
    "server": "the server",
    "general": "other options",
}


class Parser(argparse.ArgumentParser):
    """argparse with examples in its help and ConfigError for its errors."""

    def __init__(self, *, prog: str, usage: str, description: str, examples: str) -> None:
        super().__init__(
            prog=prog,
            usage=f"{prog} {usage}",
            description=description,
            epilog=f"examples:\n{examples}",
            allow_abbrev=False,
            formatter_class=_HelpFormatter,
        )
        self._option_kinds: list[type[Options]] = []

    def error(self, message: str) -> NoReturn:
        """Raise ConfigError; the caller prints it."""
        raise ConfigError(f"{message} (see `{self.prog} --help`)")

    def add_model(self) -> None:
        """The positional MODEL, which the options also know as --model."""
        self.add_argument(
            "positional_model",
            metavar="MODEL",
            nargs="?",
            help="smollm2 (the demo, the default), a .gguf file, a folder, or org/name of the Hugging Face cache",
        )

    def add_options(self, *kinds: type[Options], skip: Sequence[str] = ()) -> None:
        """A flag for every option of `kinds` but those in `skip`, and --config."""
        self._option_kinds += kinds
        specs = [spec for kind in kinds for spec in kind.specs() if spec.name not in skip]
        for group, title in _GROUPS.items():
            members = [spec for spec in specs if spec.group == group]
            section = self.add_argument_group(title) if members else None
            for spec in members:
                if section is not None:
                    _add_flag(section, spec)
        self.add_argument(
            "--config", metavar="FILE", help="YAML file of these options, as `name: value`; flags win over it"
        )

    def parse_words(self, words: Sequence[str]) -> argparse.Namespace:
        """Parse; raises ConfigError for what is wrong. vLLM's harmless options are dropped with a warning."""
        return self.parse_args(self._translate(words))

    def _translate(self, words: Sequence[str]) -> list[str]:
        """`words` with underscores in flags as dashes and without vLLM's harmless options."""
        known = self._option_string_actions
        out: list[str] = []
        rest = list(words)
        while rest:
            word = rest.pop(0)
            if word == "--":
                return [*out, word, *rest]
            stem, dot, tail = word.partition(".")
            word = SHORT_FLAGS.get(stem, stem) + dot + tail if word not in known else word
            if not word.startswith("--"):
                out.append(word)
                continue
            name, equals, value = word.partition("=")
            name = "--" + name[2:].replace("_", "-")
            if name in known:
                out.append(name + equals + value)
                continue
            rest = self._drop_vllm_option(name, value if equals else None, rest)
        return out

    def _drop_vllm_option(self, name: str, value: str | None, rest: list[str]) -> list[str]:
        """`rest` after an option that this parser lacks; raises ConfigError unless it is one without effect."""
        base, negated = name[2:].split(".")[0], False
        table = vllm_flags() if EngineConfig in self._option_kinds else {}
        if base not in table and base.startswith("no-"):
            base, negated = base[3:], True
        flag = table.get(base)
        if flag is None:
            raise ConfigError(
                unknown_name_message("option", name, self._option_string_actions) + f" (see `{self.prog} --help`)"
            )
        if flag.takes_value and value is None and rest and not rest[0].startswith("-"):
            value, rest = rest[0], rest[1:]
        warning = judge_vllm_option(base, value if value is not None else not negated)
        if warning is not None:
            warn(warning)
        return rest


def resolve_options(namespace: argparse.Namespace) -> tuple[EngineConfig, ServerConfig]:
    """Both option objects from the parsed flags, the environment and the file that --config names.

    A file written for `serve` is good for `chat` too, so both kinds' names are known to every command.
    """
    given = dict(vars(namespace))
    model = given.get("positional_model")
    if model is not None:
        if given.get("model", model) != model:
            raise ConfigError(f"two models are named, {model!r} and --model {given['model']!r}", param="model")
        given["model"] = model
    values = {} if given.get("config") is None else read_config_file(given["config"])
    files, warnings = split_options(values, (EngineConfig, ServerConfig))
    for text in warnings:
        warn(text)

    def resolve(kind: type[OptionsT], from_file: dict[str, Any]) -> OptionsT:
        flags = {spec.name: given[spec.name] for spec in kind.specs() if spec.name in given}
        return kind.resolve(flags=flags, environ=os.environ, file=from_file)

    return resolve(EngineConfig, files[0]), resolve(ServerConfig, files[1])


def warn(text: str) -> None:
    """One line on standard error."""
    print(f"headrace: warning: {text}", file=sys.stderr)


def _add_flag(section: argparse._ArgumentGroup, spec: OptionSpec) -> None:
    if spec.kind is bool:
        section.add_argument(
            spec.flag,
            dest=spec.name,
            action=argparse.BooleanOptionalAction,
            default=argparse.SUPPRESS,
            help=f"{spec.help} (default: {'yes' if spec.default else 'no'})",
        )
        return
    section.add_argument(
        spec.flag,
        dest=spec.name,
        default=argparse.SUPPRESS,
        metavar="{" + ",".join(spec.choices) + "}" if spec.choices else _metavar(spec),
        help=_help(spec),
        **({"nargs": "+", "action": _Names} if spec.many else {"type": _parse_with(spec)}),
    )


def _metavar(spec: OptionSpec) -> str:
    return "N" if spec.unit == "number" else spec.unit.upper().replace(" ", "-")


def _help(spec: OptionSpec) -> str:
    notes = []
    if spec.choices is None and (spec.minimum is not None or spec.maximum is not None):
        notes.append(spec.range_text)
    if spec.default not in (None, (), ""):
        notes.append(f"default: {format_value(spec.default, spec.unit)}")
    if spec.env:
        notes.append(f"also {spec.env}")
    return (spec.help + (f" ({'; '.join(notes)})" if notes else "")).replace("%", "%%")


def _parse_with(spec: OptionSpec) -> Callable[[str], Any]:
    def parse(text: str) -> Any:
        try:
            return spec.parse(text)
        except ConfigError as error:
            raise ConfigError(f"{error.message} (from {spec.flag})", param=spec.name) from None

    return parse


class _Names(argparse.Action):
    """Several words, each a name or names with commas between; repeating the flag adds to them."""

    def __call__(self, _parser: Any, namespace: argparse.Namespace, values: Any, _option: str | None = None) -> None:
        names = [name.strip() for word in values for name in word.split(",") if name.strip()]
        setattr(namespace, self.dest, (*getattr(namespace, self.dest, ()), *names))


class _HelpFormatter(argparse.RawDescriptionHelpFormatter):
    """Descriptions as written; enough room for the longest flags."""

    def __init__(self, prog: str) -> None:
        super().__init__(prog, max_help_position=30, width=110)
