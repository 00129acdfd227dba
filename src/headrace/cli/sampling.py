"""Flags of sampling parameters, for the commands that generate."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import Any

from headrace.cli.arguments import Parser
from headrace.config.human import parse_integer, parse_number
from headrace.core.errors import ConfigError, InvalidRequestError
from headrace.core.params import SamplingParams


def declare_sampling(parser: Parser, *, temperature: float, max_tokens: int | None) -> None:
    """Flags for one request's sampling, with this command's defaults."""
    group = parser.add_argument_group("sampling")
    shown = "the rest of the context" if max_tokens is None else max_tokens
    integer, number = _parse_with(parse_integer), _parse_with(parse_number)
    group.add_argument(
        "--max-tokens", type=integer, default=max_tokens, metavar="TOKENS", help=f"longest answer (default: {shown})"
    )
    group.add_argument(
        "--temperature",
        type=number,
        default=temperature,
        metavar="T",
        help=f"0 always takes the likeliest token; higher is more varied (default: {temperature:g})",
    )
    group.add_argument("--top-p", type=number, metavar="P", help="sample among the likeliest tokens that make up P")
    group.add_argument("--top-k", type=integer, metavar="K", help="sample among the K likeliest tokens")
    group.add_argument(
        "--sampling-seed", type=integer, metavar="N", help="same number, same answer (default: drawn from --seed)"
    )
    group.add_argument("--stop", action="append", metavar="TEXT", help="end at this text; may be repeated")


def sampling_params(namespace: argparse.Namespace, **more: Any) -> SamplingParams:
    """SamplingParams from the flags; raises ConfigError naming the flag."""
    values = {
        "max_tokens": namespace.max_tokens,
        "temperature": namespace.temperature,
        "top_p": namespace.top_p,
        "top_k": namespace.top_k,
        "seed": namespace.sampling_seed,
        "stop": namespace.stop,
    }
    given = {name: value for name, value in values.items() if value is not None or name == "max_tokens"}
    try:
        return SamplingParams(**given, **more)
    except InvalidRequestError as error:
        raise ConfigError(error.message, param=error.param) from None


def _parse_with(parse: Callable[[str], Any]) -> Callable[[str], Any]:
    def checked(text: str) -> Any:
        try:
            return parse(text)
        except ValueError as error:
            raise argparse.ArgumentTypeError(str(error)) from None

    return checked
