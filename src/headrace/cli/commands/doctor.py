"""`headrace doctor`: what this machine grants and what headrace would choose, each with its source."""

from __future__ import annotations

import argparse
import dataclasses
import importlib.metadata
import json
import os
import platform
import sys
from pathlib import Path
from typing import Any

import headrace
from headrace.cli.arguments import Parser, resolve_options
from headrace.cli.table import render_table
from headrace.config.engine import EngineConfig
from headrace.config.human import format_bytes
from headrace.config.machine import choose_threads, memory_bounds, memory_budget
from headrace.core.errors import ConfigError, HeadraceError

NAME = "doctor"
SUMMARY = """\
Print what headrace finds on this machine: CPU and kernels, threads and why, memory limits and where they come from,
versions, folders. Exit status 1 when something would keep a model from running."""
USAGE = "[options]"
EXAMPLES = """\
  headrace doctor
  headrace doctor --options            every option with its value, range and source
  headrace doctor --json"""
_PACKAGES = ("numpy", "tokenizers", "jinja2", "msgspec", "starlette", "uvicorn")


def declare(parser: Parser) -> None:
    """Declare the command's arguments."""
    parser.add_argument("--options", action="store_true", help="list every option of the engine too")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_options(EngineConfig, skip=("served_model_name",))


def run(namespace: argparse.Namespace) -> int:
    """Examine and print; 1 when there are problems."""
    config, _ = resolve_options(namespace)
    report = examine(config)
    if namespace.options:
        report["options"] = [dataclasses.asdict(row) for row in config.explain()]
    print(json.dumps(report, ensure_ascii=False) if namespace.json else _as_text(report))
    return 1 if report["problems"] else 0


def examine(config: EngineConfig, root: Path = Path("/")) -> dict[str, Any]:
    """The report as data. Problems are sentences; nothing is raised for what is merely missing."""
    problems: list[str] = []
    threads = choose_threads(config.num_threads, config.source("num_threads"), root=root)
    bounds = memory_bounds(root=root)
    budget: dict[str, Any] = {}
    try:
        chosen = memory_budget(config.memory_budget_bytes, config.source("memory_budget_bytes"), bounds=bounds)
        budget = {"budget_bytes": chosen.budget_bytes, "source": chosen.source}
    except HeadraceError as error:
        problems.append(error.message)
    kernels = _kernels(config, problems)
    if threads.note:
        problems.append(threads.note)
    return {
        "headrace": headrace.__version__,
        "python": platform.python_version(),
        "platform": platform.platform(),
        "packages": {name: _version(name) for name in _PACKAGES},
        "cpu": _cpu_name(root),
        "kernels": kernels,
        "threads": dataclasses.asdict(threads),
        "memory": {"bounds": [dataclasses.asdict(bound) for bound in bounds], **budget},
        "cache_folder": str(_cache_folder(problems)),
        "environment": {name: os.environ[name] for name in sorted(os.environ) if name.startswith("HEADRACE_")},
        "problems": problems,
    }


def _kernels(config: EngineConfig, problems: list[str]) -> dict[str, Any]:
    try:
        from headrace import _native
    except ImportError as error:
        problems.append(f"the native module does not load ({error}); in a checkout `make install` builds it")
        return {"available": [], "chosen": None, "source": "none"}
    from headrace.runner.planning import choose_isa

    available = list(_native.available_isas())
    try:
        chosen: str | None = choose_isa(config)
    except ConfigError as error:
        problems.append(error.message)
        chosen = None
    source = f"isa ({config.source('isa')})" if config.isa is not None else "best of those this CPU runs"
    return {"available": available, "chosen": chosen, "source": source}


def _cpu_name(root: Path) -> str:
    try:
        lines = (root / "proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        lines = []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor() or platform.machine()


def _cache_folder(problems: list[str]) -> Path:
    from headrace.weights.hub.cache import cache_dir

    folder = cache_dir()
    place = folder
    while not place.exists() and place != place.parent:
        place = place.parent
    if not os.access(place, os.W_OK):
        problems.append(f"the cache folder {folder} cannot be written; set HEADRACE_CACHE to another one")
    return folder


def _version(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def _as_text(report: dict[str, Any]) -> str:
    kernels, threads, memory = report["kernels"], report["threads"], report["memory"]
    packages = ", ".join(f"{name} {version or 'missing'}" for name, version in report["packages"].items())
    lines = [
        f"headrace {report['headrace']}, Python {report['python']} ({sys.executable})",
        f"packages  {packages}",
        f"platform  {report['platform']}",
        f"cpu       {report['cpu']}",
        f"kernels   {kernels['chosen']}: {kernels['source']} (available: {', '.join(kernels['available']) or 'none'})",
        f"threads   {threads['num_threads']}: {threads['source']}",
    ]
    for bound in memory["bounds"]:
        left, limit = format_bytes(bound["available_bytes"]), format_bytes(bound["limit_bytes"])
        lines.append(f"memory    {left} free of {limit}: {bound['source']}")
    if "budget_bytes" in memory:
        lines.append(f"budget    {format_bytes(memory['budget_bytes'])}: {memory['source']}")
    lines.append(f"cache     {report['cache_folder']}")
    lines += [f"set       {name}={value}" for name, value in report["environment"].items()]
    if "options" in report:
        columns = ("name", "value", "unit", "source", "range")
        rows = [tuple(str(row[column]) for column in columns) for row in report["options"]]
        lines += ["", render_table(columns, rows)]
    lines += ["", *(f"problem: {text}" for text in report["problems"])] if report["problems"] else ["", "no problems"]
    return "\n".join(lines)
