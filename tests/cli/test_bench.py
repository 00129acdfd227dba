import json
from collections.abc import Callable
from pathlib import Path

import pytest

from headrace import _native
from headrace.cli import main
from headrace.kernels import roofline
from headrace.kernels.roofline import Roofline

ISA = _native.available_isas()[0]


@pytest.fixture
def kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Roofline:
    """Figures of this machine in the cache folder, so that nothing is measured."""
    monkeypatch.setenv("HEADRACE_CACHE", str(tmp_path))
    figures = Roofline(
        roofline.this_machine(ISA, 2),
        12.5,
        int8_gops=1800.0,
        q4_ceiling_gops=1200.0,
        bf16_gflops=0.0,
        f32_gflops=450.0,
        read={1 << 20: {1: 80.0, 2: 160.0}, 1 << 30: {1: 11.0, 2: 12.5}},
        one_thread={"int8_gops": 900.0, "q4_ceiling_gops": 600.0, "bf16_gflops": 0.0, "f32_gflops": 225.0},
    )
    roofline.save(figures)
    return figures


@pytest.mark.usefixtures("kept")
def test_limits_are_printed(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "roofline", "--num-threads", "2"]) == 0
    words = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert ["1.0", "GiB", "11.0", "12.5"] in words
    assert ["int8", "dot", "product", "900", "1800"] in words
    assert not any("bf16" in line for line in words)


def test_a_model_adds_each_kernel_s_share(
    kept: Roofline, tiny_gguf: Callable[..., Path], capsys: pytest.CaptureFixture[str]
) -> None:
    model = str(tiny_gguf("llama", "Q4_1"))
    assert main(["bench", "roofline", model, "--num-threads", "2", "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert report["read_gb_s"] == kept.read_gb_s
    assert {"linear q4", "attention"} <= {row["kernel"] for row in report["kernels"]}
    assert main(["bench", "roofline", model, "--num-threads", "2"]) == 0
    assert "linear q4" in capsys.readouterr().out


@pytest.mark.parametrize("words", [["rooflin"], ["roofline", "--isa", "reference"]])
def test_what_cannot_be_measured_is_said(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", *words]) == 2
    assert capsys.readouterr().err.count("\n") == 1
