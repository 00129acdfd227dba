"""`headrace plan`: print what would run, and what changed between two plans."""

from __future__ import annotations

import argparse
import json
import re
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from headrace.cli.arguments import Parser, resolve_options
from headrace.cli.fetch import fetch_model
from headrace.cli.table import render_table
from headrace.config.engine import EngineConfig
from headrace.config.human import format_bytes
from headrace.core.errors import ConfigError, unknown_name_message

NAME = "plan"
SUMMARY = """\
plan show prints the calls that every step replays: kernel, sizes, bytes, operations, for the options given.
plan diff says what changed between two plans: models, or files that `plan show --json` wrote. Exit status of diff:
0 the same, 1 different, 2 an error."""
USAGE = "show MODEL [options] | diff A B [options]"
EXAMPLES = """\
  headrace plan show smollm2
  headrace plan show model.gguf --all --max-model-len 4K
  headrace plan show model.gguf --json > before.json
  headrace plan diff before.json model.gguf"""
_ACTIONS = ("show", "diff")
_COLUMNS = ("segment", "op", "label", "kernel", "dims", "weights", "MFLOP/row", "times")


def declare(parser: Parser) -> None:
    """Declare the command's arguments."""
    parser.add_argument("action", metavar="show|diff", help="print one plan, or compare two")
    parser.add_argument("plans", metavar="MODEL", nargs="*", help="a model; for diff two models or plan files")
    parser.add_argument("--all", action="store_true", help="one line per call, also for layers that are alike")
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.add_options(EngineConfig, skip=("served_model_name", "model"))


def run(namespace: argparse.Namespace) -> int:
    """Show or compare; raises HeadraceError for a model that cannot be planned."""
    if namespace.action not in _ACTIONS:
        raise ConfigError(unknown_name_message("action", namespace.action, _ACTIONS))
    config, _ = resolve_options(namespace)
    names: list[str] = namespace.plans
    if namespace.action == "diff":
        if len(names) != 2:
            raise ConfigError("plan diff takes two models or plan files (see `headrace plan --help`)")
        return _diff(_plan(config, names[0]), _plan(config, names[1]), as_json=namespace.json)
    if len(names) > 1:
        raise ConfigError("plan show takes one model (see `headrace plan --help`)")
    plan = _plan(config, names[0] if names else config.model)
    if namespace.json:
        json.dump(plan, sys.stdout, indent=1)
        print()
    else:
        print(_as_text(plan, every_call=namespace.all))
    return 0


def _plan(config: EngineConfig, name: str) -> dict[str, Any]:
    """The plan of a model, or the one that a file holds."""
    if name.endswith(".json"):
        try:
            content = json.loads(Path(name).read_text(encoding="utf-8"))
        except (OSError, ValueError) as error:
            raise ConfigError(f"cannot read the plan {name}: {error}") from None
        if not isinstance(content, dict) or "structure_id" not in content:
            raise ConfigError(f"{name} is no plan; `headrace plan show MODEL --json` writes one")
        return content
    config = config.with_value("model", name, "flag")
    fetch_model(config)
    from headrace.runner.planning import describe_plan

    return describe_plan(config).to_dict()


def _diff(before: Mapping[str, Any], after: Mapping[str, Any], *, as_json: bool) -> int:
    from headrace.graph.plan import diff

    try:
        changes = diff(before, after)
    except (KeyError, TypeError) as error:
        raise ConfigError(f"one of the plans is incomplete ({error}); write it again with this headrace") from None
    if as_json:
        print(json.dumps({"same": not changes, "changes": changes}, ensure_ascii=False))
    else:
        print("\n".join(changes) if changes else "the plans are the same")
    return 1 if changes else 0


def _as_text(plan: Mapping[str, Any], *, every_call: bool) -> str:
    sizes = ", ".join(
        f"{name} {format_bytes(plan[f'{name}_bytes'])}" for name in ("weights", "arena", "constants", "taps")
    )
    limits = ", ".join(f"{name} {value}" for name, value in plan["limits"].items())
    head = [
        f"model      {plan['model']}",
        f"kernels    {plan['isa']}",
        f"structure  {plan['structure_id']}",
        f"numerics   {plan['numerics_id']}",
        f"memory     {sizes}",
        f"limits     {limits}",
        "",
    ]
    rows = [_row(call) for call in plan["calls"]]
    counted: list[tuple[str, ...]]
    if every_call:
        counted = [(*row, "") for row in rows]
    else:
        counted = _alike_once(rows)
    return "\n".join(head) + "\n" + render_table(_COLUMNS, counted, right=("weights", "MFLOP/row", "times"))


def _row(call: Mapping[str, Any]) -> tuple[str, ...]:
    return (
        str(call["segment"]),
        str(call["op"]),
        str(call["label"]),
        str(call["isa"]),
        "x".join(str(d) for d in call["dims"]),
        format_bytes(call["weight_bytes"]) if call["weight_bytes"] else "",
        f"{call['flops_per_row'] / 1e6:.3f}" if call["flops_per_row"] else "",
    )


def _alike_once(rows: Sequence[tuple[str, ...]]) -> list[tuple[str, ...]]:
    """Calls that differ in the numbers of their label alone (layers), at the first one's place, counted."""
    counts: dict[tuple[str, ...], int] = {}
    for row in rows:
        key = (*row[:2], re.sub(r"\d+", "*", row[2]), *row[3:])
        counts[key] = counts.get(key, 0) + 1
    return [(*row, f"{count}x" if count > 1 else "") for row, count in counts.items()]
