"""`headrace bench`: what this machine can give, and what share of it each kernel gets."""

from __future__ import annotations

import argparse
import json
import sys
from typing import TYPE_CHECKING, Any

from headrace.cli.arguments import Parser, resolve_options
from headrace.cli.fetch import fetch_model
from headrace.cli.table import render_table
from headrace.config.engine import EngineConfig
from headrace.config.human import format_bytes
from headrace.config.machine import choose_threads
from headrace.core.errors import ConfigError, unknown_name_message

if TYPE_CHECKING:
    from headrace.kernels.roofline import Roofline
    from headrace.runner.kernel_shares import Share

NAME = "bench"
SUMMARY = """\
bench roofline measures the limits of this machine: bytes per second from memory by working set, and operations per
second on registers, for the kernel level and threads given. The figures are kept in the cache folder. With a MODEL it
then runs some steps of the model's plan and prints what share of its limit each kernel reaches. Leave the machine
alone meanwhile: other work lowers both."""
USAGE = "roofline [MODEL] [options]"
EXAMPLES = """\
  headrace bench roofline
  headrace bench roofline smollm2
  headrace bench roofline model.gguf --isa avx2 --num-threads 4 --json"""
_ACTIONS = ("roofline",)


def declare(parser: Parser) -> None:
    """Declare the command's arguments."""
    parser.add_argument("action", metavar="roofline", help="measure the machine's limits")
    parser.add_model()
    parser.add_argument("--fresh", action="store_true", help="measure again although figures of this machine are kept")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_options(EngineConfig, skip=("served_model_name",))


def run(namespace: argparse.Namespace) -> int:
    """Measure and print; raises HeadraceError."""
    if namespace.action not in _ACTIONS:
        raise ConfigError(unknown_name_message("action", namespace.action, _ACTIONS))
    config, _ = resolve_options(namespace)
    with_model = config.source("model") != "default"
    if with_model:
        fetch_model(config)
    from headrace.kernels.roofline import as_json, roofline
    from headrace.runner.planning import choose_isa

    isa = choose_isa(config)
    if isa == "reference":
        raise ConfigError("the reference has no kernels to measure; choose another isa", param="isa")
    threads = choose_threads(config.num_threads, config.source("num_threads")).num_threads
    limits = roofline(isa, threads, fresh=namespace.fresh, progress=_say)
    shares = _measure_model(config, limits) if with_model else []
    if namespace.json:
        report = as_json(limits)
        if with_model:
            report["kernels"] = [_as_dict(share) for share in shares]
        print(json.dumps(report))
    else:
        print("\n\n".join([_limits_as_text(limits), *([_shares_as_text(shares)] if shares else [])]))
    return 0


def _measure_model(config: EngineConfig, limits: Roofline) -> list[Share]:
    from headrace.runner.kernel_shares import kernel_shares
    from headrace.weights.hub import resolve_model

    return kernel_shares(resolve_model(config.model, config.revision), limits, progress=_say)


def _say(text: str) -> None:
    if sys.stderr.isatty():
        print(f"headrace: {text}", file=sys.stderr)


def _as_dict(share: Share) -> dict[str, Any]:
    return {
        "scenario": share.scenario,
        "kernel": share.kernel,
        "num_calls": share.num_calls,
        "seconds": share.seconds,
        "bytes": share.num_bytes,
        "ops": share.num_ops,
        "bound": share.bound,
        "share": share.share,
    }


def _limits_as_text(limits: Roofline) -> str:
    machine = limits.machine
    counts = sorted({n for by_threads in limits.read.values() for n in by_threads})
    columns = ("working set", *(f"GB/s, {n} thread{'s' if n > 1 else ''}" for n in counts))
    rows = [(format_bytes(size), *(f"{by[n]:.1f}" for n in counts)) for size, by in sorted(limits.read.items())]
    names = {
        "f32_gflops": "f32 multiply-add",
        "bf16_gflops": "bf16 dot product",
        "int8_gops": "int8 dot product",
        "q4_ceiling_gops": "the same with scale and minimum per 32 (q4's ceiling)",
    }
    peaks = [
        (text, f"{limits.one_thread[name]:.0f}", f"{getattr(limits, name):.0f}")
        for name, text in names.items()
        if getattr(limits, name)
    ]
    peak_columns = ("10^9 operations per second", "1 thread", f"all {machine.num_threads}")
    return "\n".join(
        [
            f"machine  {machine.cpu}, kernels {machine.isa}, {machine.num_threads} threads",
            "",
            render_table(columns, rows, right=columns),
            "",
            render_table(peak_columns, peaks, right=peak_columns[1:]),
        ]
    )


def _shares_as_text(shares: list[Share]) -> str:
    columns = ("scenario", "kernel", "calls", "ms/step", "GB/s", "GOP/s", "bound by", "of limit")
    rows = [
        (
            share.scenario,
            share.kernel,
            str(share.num_calls),
            f"{1e3 * share.seconds:.3f}",
            f"{1e-9 * share.num_bytes / share.seconds:.1f}" if share.num_bytes else "",
            f"{1e-9 * share.num_ops / share.seconds:.0f}" if share.num_ops else "",
            share.bound,
            f"{100 * share.share:.0f} %" if share.limit_s else "",
        )
        for share in shares
    ]
    return render_table(columns, rows, right=columns[2:6] + columns[7:])
