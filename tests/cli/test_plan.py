import copy
import json
from pathlib import Path
from typing import Any

import pytest

from headrace.cli import main
from headrace.cli.commands import plan
from headrace.cli.table import render_table


def call(label: str, **values: Any) -> dict[str, Any]:
    base = {
        "call": 0,
        "segment": "forward",
        "op": "linear",
        "label": label,
        "face": "cpu",
        "isa": "avx2",
        "dims": [8, 4],
        "flags": 0,
        "weight_bytes": 2048,
        "flops_per_row": 64_000,
        "traffic_bytes_per_row": 8,
        "numerics": {"rounding": "nearest"},
    }
    return {**base, **values}


PLAN: dict[str, Any] = {
    "model": "llama/abc",
    "isa": "avx2",
    "structure_id": "s1",
    "numerics_id": "n1",
    "limits": {"max_model_len": 128},
    "arena_bytes": 1024,
    "weights_bytes": 4096,
    "constants_bytes": 0,
    "taps_bytes": 0,
    "calls": [
        call("layers.0.qkv"),
        call("layers.0.attention", op="attention", dims=[0, 0, 3]),
        call("layers.1.qkv"),
        call("layers.1.attention", op="attention", dims=[0, 1, 3]),
        call("head", segment="logits", dims=[9, 4]),
    ],
    "weights": [{"name": "head", "format": "q4", "size_bytes": 10, "parts": []}],
}


@pytest.fixture
def file(tmp_path: Path) -> str:
    path = tmp_path / "plan.json"
    path.write_text(json.dumps(PLAN))
    return str(path)


def test_layers_that_are_alike_are_shown_once(file: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", "show", file]) == 0
    out = capsys.readouterr().out
    lines = [line.split() for line in out.splitlines() if "layers." in line]
    assert [(line[2], line[4], line[-1]) for line in lines] == [
        ("layers.*.qkv", "8x4", "2x"),
        ("layers.*.attention", "0x*x3", "2x"),
    ]
    assert "n1" in out
    assert "4.0 KiB" in out


def test_all_shows_every_call(file: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", "show", file, "--all"]) == 0
    assert capsys.readouterr().out.count("layers.") == 4


def test_layers_of_other_sizes_are_shown_apart(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "plan.json"
    calls = [call("layers.0.qkv", dims=[8, 4]), call("layers.1.qkv", dims=[6, 4]), call("layers.2.qkv", dims=[8, 4])]
    path.write_text(json.dumps({**PLAN, "calls": calls}))
    assert main(["plan", "show", str(path)]) == 0
    lines = [line.split() for line in capsys.readouterr().out.splitlines() if "layers." in line]
    assert [line[4] for line in lines] == ["8x4", "6x4"]


def test_json_round_trips(file: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", "show", file, "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == PLAN


def test_equal_plans_have_status_0(file: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", "diff", file, file]) == 0
    assert capsys.readouterr().out == "the plans are the same\n"


def test_different_plans_have_status_1_and_say_what_changed(
    file: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    changed = copy.deepcopy(PLAN)
    changed["limits"]["max_model_len"] = 64
    other = tmp_path / "other.json"
    other.write_text(json.dumps(changed))
    assert main(["plan", "diff", file, str(other)]) == 1
    assert "max_model_len: 128 → 64" in capsys.readouterr().out
    assert main(["plan", "diff", file, str(other), "--json"]) == 1
    assert json.loads(capsys.readouterr().out)["same"] is False


@pytest.mark.parametrize("content", ["{", "[]", '{"a": 1}'])
def test_a_file_that_holds_no_plan_is_named(tmp_path: Path, content: str, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "bad.json"
    path.write_text(content)
    assert main(["plan", "show", str(path)]) == 2
    assert str(path) in capsys.readouterr().err


def test_an_incomplete_plan_cannot_be_compared(file: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "part.json"
    path.write_text('{"structure_id": "x"}')
    assert main(["plan", "diff", file, str(path)]) == 2
    assert "incomplete" in capsys.readouterr().err


def test_tables_are_aligned() -> None:
    text = render_table(("name", "n"), [("a", "10"), ("bcdef", "2")], right=("n",))
    assert text.splitlines() == ["name    n", "-----  --", "a      10", "bcdef   2"]
    assert plan.NAME == "plan"


def test_a_profile_needs_a_model_and_a_trace_needs_a_profile(file: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", "show", file, "--profile"]) == 2
    assert "takes a model" in capsys.readouterr().err
    assert main(["plan", "show", file, "--trace", "x.json"]) == 2
    assert "--profile" in capsys.readouterr().err
