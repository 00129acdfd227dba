import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

import headrace
from headrace.cli import app, main
from headrace.cli.commands import serve
from headrace.core.errors import CapacityError, EngineDeadError

COMMANDS = ["serve", "chat", "generate", "pull", "plan", "bench", "doctor"]


def test_alone_it_prints_an_overview_that_names_every_command(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([]) == 0
    out = capsys.readouterr().out
    assert all(f"headrace {command}" in out for command in COMMANDS)
    for word in ("--help", "-h", "help"):
        assert main([word]) == 0
        assert capsys.readouterr().out == out


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--version"]) == 0
    assert capsys.readouterr().out == f"headrace {headrace.__version__}\n"


@pytest.mark.parametrize("command", COMMANDS)
def test_help_teaches_with_examples(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as left:
        main([command, "--help"])
    assert left.value.code == 0
    out = capsys.readouterr().out
    assert out.startswith(f"usage: headrace {command}")
    assert f"examples:\n  headrace {command}" in out


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["serv"], "unknown command 'serv'; did you mean 'serve'?"),
        (["complete"], "headrace calls it 'generate'"),
        (["--port", "3"], "the command comes first"),
        (["serve", "--max-modellen", "3"], "unknown option '--max-modellen'; did you mean '--max-model-len'?"),
        (["pull", "--enable-lora"], "unknown option '--enable-lora'"),
        (["serve", "--enable-lora"], "'enable-lora' is refused: adapters are not supported yet"),
        (["serve", "-tp", "2"], "'tensor-parallel-size' may only be 1"),
        (["serve", "--no-enable-chunked-prefill"], "always computed in chunks"),
        (["serve", "--port", "99999"], "port must be an integer from 0 to 65535 (number), got 99999 (from --port)"),
        (["serve", "--max-model-len", "long"], "'long' is not an integer (from --max-model-len)"),
        (["serve", "--port"], "expected one argument (see `headrace serve --help`)"),
        (["serve", "a", "b"], "unrecognized arguments: b"),
        (["serve", "a", "--model", "b"], "two models are named, 'a' and --model 'b'"),
        (["serve", "--dtype", "bfloat16"], "no kernels yet"),
        (["generate", "-p", "x", "--temperature", "-1"], "temperature must be a number from 0 to 100"),
        (["generate", "-p", "x", "--max-tokens", "x"], "'x' is not an integer"),
        (["plan", "shw"], "unknown action 'shw'; did you mean 'show'?"),
        (["plan", "diff", "a"], "plan diff takes two"),
        (["pull"], "give a NAME, or --from-wheel FILE"),
    ],
)
def test_a_usage_error_is_one_line_and_status_2(
    words: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(words) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith("headrace: error: ")
    assert message in captured.err
    assert captured.err.count("\n") == 1


def test_a_failure_is_one_line_and_status_1(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail(_config: object) -> None:
        raise EngineDeadError("the engine is gone")

    monkeypatch.setattr(serve, "fetch_model", fail)
    assert main(["serve"]) == 1
    assert capsys.readouterr().err == "headrace: error: the engine is gone\n"


def test_the_memory_table_follows_the_error_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail(_config: object) -> None:
        raise CapacityError("it does not fit\n  weights  1 GiB\n  kv       9 GiB")

    monkeypatch.setattr(serve, "fetch_model", fail)
    assert main(["serve"]) == 1
    assert capsys.readouterr().err == "headrace: error: it does not fit\n  weights  1 GiB\n  kv       9 GiB\n"


def test_ctrl_c_is_status_130_without_a_traceback(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def interrupt(_config: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(serve, "fetch_model", interrupt)
    assert main(["serve"]) == 130
    assert "Traceback" not in capsys.readouterr().err


def test_a_bug_is_not_hidden(monkeypatch: pytest.MonkeyPatch) -> None:
    def bug(_config: object) -> None:
        raise ZeroDivisionError

    monkeypatch.setattr(serve, "fetch_model", bug)
    with pytest.raises(ZeroDivisionError):
        main(["serve"])


def test_a_reader_that_leaves_early_causes_no_traceback() -> None:
    code = "import sys; from headrace.cli import main; sys.exit(main(['serve', '--help']))"
    reading, writing = os.pipe()
    os.close(reading)
    done = subprocess.run([sys.executable, "-c", code], stdout=writing, stderr=subprocess.PIPE, text=True, timeout=60)
    os.close(writing)
    assert "Traceback" not in done.stderr


def test_every_command_names_itself() -> None:
    assert list(app._COMMANDS) == COMMANDS


def test_doctor_json_is_one_object(capsys: pytest.CaptureFixture[str]) -> None:
    main(["doctor", "--json", "--options", "--num-threads", "1"])
    report = json.loads(capsys.readouterr().out)
    assert report["threads"]["num_threads"] == 1
    assert report["threads"]["source"] == "num_threads (flag)"
    assert report["memory"]["bounds"][0]["available_bytes"] > 0
    assert {row["name"] for row in report["options"]} >= {"model", "isa", "seed"}


def test_the_module_and_the_command_are_the_same(tmp_path: Path) -> None:
    command = Path(sys.executable).parent / "headrace"
    if not command.exists():
        pytest.skip("headrace is not installed in this environment")
    done = subprocess.run([command, "--version"], capture_output=True, text=True, timeout=60, cwd=tmp_path, check=True)
    assert done.stdout == f"headrace {headrace.__version__}\n"
