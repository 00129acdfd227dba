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
from headrace.cli.profile_table import profile_as_dict, profile_as_text
from headrace.cli.table import render_table
from headrace.config.engine import EngineConfig
from headrace.config.human import format_bytes
from headrace.config.machine import choose_threads
from headrace.core.errors import ConfigError, unknown_name_message

NAME = "plan"
SUMMARY = """\
plan show prints the calls that every step replays: kernel, sizes, bytes, operations, for the options given.
With --profile it runs some real steps and prints where their time goes, per call type: share of the step, waiting
included; bytes and operations per second; and what part of the limit that is, once `headrace bench roofline` has
measured it.
plan diff says what changed between two plans: models, or files that `plan show --json` wrote. Exit status of diff:
0 the same, 1 different, 2 an error."""
USAGE = "show MODEL [options] | diff A B [options]"
EXAMPLES = """\
  headrace plan show smollm2
  headrace plan show model.gguf --all --max-model-len 4K
  headrace plan show smollm2 --profile --trace steps.json
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
    parser.add_argument("--profile", action="store_true", help="run some steps and print where their time goes")
    parser.add_argument("--trace", metavar="FILE", help="with --profile: write these steps as a Chrome trace")
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
    if namespace.profile:
        return _profile(config, names[0] if names else config.model, as_json=namespace.json, trace=namespace.trace)
    if namespace.trace is not None:
        raise ConfigError("--trace goes with --profile")
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


def _profile(config: EngineConfig, name: str, *, as_json: bool, trace: str | None) -> int:
    if name.endswith(".json"):
        raise ConfigError("a plan file cannot be run; --profile takes a model")
    config = config.with_value("model", name, "flag")
    fetch_model(config)
    from headrace.runner.planning import choose_isa
    from headrace.runner.step_profile import profile_steps
    from headrace.weights.hub import resolve_model

    threads = choose_threads(config.num_threads, config.source("num_threads")).num_threads
    profile = profile_steps(resolve_model(config.model, config.revision), choose_isa(config), threads)
    if trace is not None:
        try:
            Path(trace).write_text(json.dumps({"traceEvents": profile.trace}), encoding="utf-8")
        except OSError as error:
            raise ConfigError(f"cannot write the trace {trace}: {error.strerror}") from None
    print(json.dumps(profile_as_dict(profile)) if as_json else profile_as_text(profile))
    return 0


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
    calls = [(call, 1) for call in plan["calls"]] if every_call else _alike_once(plan["calls"])
    rows = [_row(call, count) for call, count in calls]
    return "\n".join(head) + "\n" + render_table(_COLUMNS, rows, right=("weights", "MFLOP/row", "times"))


def _row(call: Mapping[str, Any], count: int) -> tuple[str, ...]:
    return (
        str(call["segment"]),
        str(call["op"]),
        str(call["label"]),
        str(call["isa"]),
        "x".join(str(d) for d in call["dims"]),
        format_bytes(call["weight_bytes"]) if call["weight_bytes"] else "",
        f"{call['flops_per_row'] / 1e6:.3f}" if call["flops_per_row"] else "",
        f"{count}x" if count > 1 else "",
    )


def _alike_once(calls: Sequence[Mapping[str, Any]]) -> list[tuple[Mapping[str, Any], int]]:
    """Calls that differ in their layer's number alone, as one at the first one's place, with how many they are."""
    groups: dict[str, list[Mapping[str, Any]]] = {}
    for call in calls:
        rest = {name: value for name, value in call.items() if name not in ("call", "label", "dims")}
        key = json.dumps([re.sub(r"\d+", "*", call["label"]), len(call["dims"]), rest], sort_keys=True)
        groups.setdefault(key, []).append(call)
    out: dict[str, tuple[Mapping[str, Any], int]] = {}
    for key, members in groups.items():
        layers = [_layer(call) for call in members]
        # An operand that is the layer's number (its place in the KV cache) differs as the label does.
        follows = [
            len(set(layers)) > 1 and all(call["dims"][i] == layer for call, layer in zip(members, layers, strict=True))
            for i in range(len(members[0]["dims"]))
        ]
        for call in members:
            dims = ["*" if masked else d for d, masked in zip(call["dims"], follows, strict=True)]
            label = re.sub(r"\d+", "*", call["label"]) if len(members) > 1 else call["label"]
            shown = {**call, "label": label, "dims": dims}
            first, count = out.get(f"{key} {dims}", (shown, 0))
            out[f"{key} {dims}"] = (first, count + 1)
    return list(out.values())


def _layer(call: Mapping[str, Any]) -> int | None:
    numbers = re.findall(r"\d+", call["label"])
    return int(numbers[0]) if numbers else None
