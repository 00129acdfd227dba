"""Write docs/compatibility.md from docs/data/vllm-interface.tsv and what headrace declares. `make docs` runs it."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence
from pathlib import Path

from headrace.config.engine import EngineConfig
from headrace.config.human import format_value
from headrace.config.options import OptionSpec
from headrace.config.server import ServerConfig
from headrace.config.vllm_flags import SHORT_FLAGS, vllm_flags
from headrace.core.stats import EngineStats
from headrace.models.registry import FAMILIES
from headrace.observe.metrics import Metrics

DOCS = Path(__file__).parent
INTERFACE = DOCS / "data" / "vllm-interface.tsv"
PAGE = DOCS / "compatibility.md"
_HEAD = """\
# Compatibility with vLLM

Written by `make docs` from [data/vllm-interface.tsv](data/vllm-interface.tsv) (vLLM {versions}: names and defaults)
and from what headrace declares; a test holds this page to both. Nothing is ignored in silence: a vLLM option is
*supported*, *accepted without effect* (with a warning), or *refused* with a reason; any other name is an error that
suggests the nearest. The same holds for keyword arguments of `LLM` and for names in a `--config` file.
"""


def read_interface(path: Path = INTERFACE) -> tuple[list[str], dict[str, list[list[str]]]]:
    """(versions, kind → rows of name and one cell a version) of the interface table."""
    header, *lines = path.read_text(encoding="utf-8").splitlines()
    rows: dict[str, list[list[str]]] = {}
    for line in lines:
        kind, *cells = line.split("\t")
        rows.setdefault(kind, []).append(cells)
    return header.split("\t")[2:], rows


def render() -> str:
    """The whole page."""
    versions, rows = read_interface()
    parts = [
        _HEAD.format(versions=", ".join(versions)),
        _options_section({row[0][2:] for row in rows["flag"]}),
        _other_flags_section(rows["flag"]),
        _environment_section(len(rows["env"])),
        _architectures_section([row[0] for row in rows["arch"] if row[-1] == "yes"]),
        _metrics_section([row[0] for row in rows["metric"]]),
    ]
    return "\n".join(parts)


def _options_section(vllm_names: set[str]) -> str:
    lines = []
    for kind in (EngineConfig, ServerConfig):
        for spec in kind.specs():
            theirs = "same name" if spec.flag[2:] in vllm_names else "headrace's own"
            lines.append([_code(spec.flag), spec.unit, spec.range_text, _default(spec), theirs, spec.help])
    lines.append([_code("--config"), "path", "any", "-", "same name", "YAML file of these options"])
    table = _table(["flag", "unit", "range", "default", "in vLLM", "meaning"], lines)
    note = (
        "Numbers take suffixes as in vLLM (4k = 4000, 4K = 4096); bytes also `512MiB`, `2GB`. Flags win over the\n"
        "environment, the environment over the file. Keyword arguments of `LLM` are the names in underscores.\n"
        f"Fields of `EngineConfig` that are called otherwise: {_different_names()}.\n"
    )
    return f"## Options\n\n{note}\n{table}"


def _different_names() -> str:
    specs = [spec for kind in (EngineConfig, ServerConfig) for spec in kind.specs()]
    odd = [spec for spec in specs if spec.flag[2:].replace("-", "_") != spec.name]
    return ", ".join(f"{_code(spec.flag)} is {_code(spec.name)}" for spec in odd) or "nowhere"


def _other_flags_section(flag_rows: Sequence[Sequence[str]]) -> str:
    defaults = {row[0][2:]: next((c for c in reversed(row[1:]) if c != "-"), "-") for row in flag_rows}
    table = vllm_flags()
    shorts: dict[str, list[str]] = {}
    for short, long in SHORT_FLAGS.items():
        shorts.setdefault(long[2:], []).append(short)
    accepted, refused = [], []
    for name in sorted(table):
        flag = table[name]
        shown = ", ".join(_code(n) for n in ["--" + name, *shorts.get(name, [])])
        if flag.status == "accepted":
            values = "any" if flag.only is None else ", ".join(_code(v) for v in flag.only)
            accepted.append([shown, values, flag.reason])
        else:
            refused.append([shown, _code(defaults.get(name, "-")), flag.reason])
    return (
        "## Accepted without effect\n\nOther values than those listed are refused for the same reason.\n\n"
        + _table(["vLLM's flag", "values", "why it has no effect"], accepted)
        + "\n## Refused\n\n"
        + _table(["vLLM's flag", "default in vLLM", "why"], refused)
    )


def _environment_section(num_theirs: int) -> str:
    lines = [
        [_code(spec.env), f"as {_code(spec.flag)}"]
        for kind in (EngineConfig, ServerConfig)
        for spec in kind.specs()
        if spec.env
    ]
    lines += [
        [_code("HEADRACE_CACHE"), "folder for fetched models"],
        [_code("HEADRACE_DEMO_MODEL"), "a local file to use as the demo model"],
    ]
    return (
        f"## Environment variables\n\nNone of vLLM's {num_theirs} `VLLM_*` variables is read. headrace reads:\n\n"
        + _table(["variable", "meaning"], lines)
    )


def _architectures_section(theirs: list[str]) -> str:
    supported = [name for name in theirs if name in {f"{family.capitalize()}ForCausalLM" for family in FAMILIES}]
    lines = [[_code(name), "supported"] for name in supported]
    lines.append([f"the other {len(theirs) - len(supported)} of vLLM", "refused, with the supported ones named"])
    return "## Architectures\n\n" + _table(["architecture", "here"], lines)


def _metrics_section(theirs: list[str]) -> str:
    served = served_metrics()
    lines = [[_code(name), "served" if name in served else "-"] for name in theirs]
    return (
        "## Metrics\n\nvLLM's names that `/metrics` serves beside headrace's own (`headrace:`); `-` are not there.\n\n"
        + _table(["metric", "here"], lines)
    )


def served_metrics() -> set[str]:
    """The vLLM names on /metrics, without the `_total` that the text format puts after a counter's name."""
    nothing = EngineStats(
        num_running=0,
        num_waiting=0,
        num_blocks=1,
        num_free_blocks=1,
        block_size=16,
        num_steps=0,
        num_preemptions=0,
        prefix_cache_queries=0,
        prefix_cache_hits=0,
        prompt_tokens=0,
        generation_tokens=0,
    )
    names = set()
    for line in Metrics("model").scrape(nothing).splitlines():
        words = line.split()
        if words[:2] == ["#", "TYPE"] and words[2].startswith("vllm:"):
            names.add(words[2].removesuffix("_total") if words[3] == "counter" else words[2])
    return names


def _default(spec: OptionSpec) -> str:
    return "-" if spec.default in (None, (), "") else _code(format_value(spec.default, spec.unit))


def _code(text: str) -> str:
    return f"`{text}`"


def _table(columns: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [columns, ["---"] * len(columns), *rows]
    cells = [[cell.replace("|", "\\|") for cell in line] for line in lines]
    return "".join("| " + " | ".join(line) + " |\n" for line in cells)


def main() -> int:
    """Write the page."""
    PAGE.write_text(render(), encoding="utf-8")
    print(f"wrote {PAGE}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
