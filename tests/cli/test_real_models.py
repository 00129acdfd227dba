"""The commands with real engines: tiny random models in this process, the demo model in a terminal."""

import json
import os
import pty
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from headrace.cli import main

RUN = "import sys; from headrace.cli import main; sys.exit(main())"
SMALL = ("--num-threads", "1", "--max-num-seqs", "2", "--kv-cache-memory-bytes", "8MiB")


def test_generate_prints_one_json_object(tiny_hf: Callable[..., Path], capsys: pytest.CaptureFixture[str]) -> None:
    model = str(tiny_hf("llama"))
    reports = []
    for _ in range(2):
        assert main(["generate", model, "-p", "abc", "--max-tokens", "5", "--json", *SMALL]) == 0
        reports.append(json.loads(capsys.readouterr().out))
    first, second = reports
    assert first["token_ids"] == second["token_ids"]
    assert first["usage"]["completion_tokens"] == len(first["token_ids"]) <= 5
    assert first["finish_reason"] in ("length", "stop")


def test_a_plan_is_shown_and_compared(
    tiny_hf: Callable[..., Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model = str(tiny_hf("llama"))
    assert main(["plan", "show", model, "--json"]) == 0
    before = tmp_path / "before.json"
    before.write_text(capsys.readouterr().out)
    assert main(["plan", "diff", str(before), model]) == 0
    assert main(["plan", "diff", str(before), model, "--max-model-len", "32"]) == 1
    assert "max_model_len" in capsys.readouterr().out
    assert main(["plan", "show", model]) == 0
    assert "attention" in capsys.readouterr().out


def test_an_instruction_set_that_is_not_there_is_refused(
    tiny_hf: Callable[..., Path], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["generate", str(tiny_hf("llama")), "-p", "a", "--isa", "quantum"]) == 2
    err = capsys.readouterr().err
    assert "'quantum' is not available on this CPU" in err
    assert "portable" in err
    assert main(["doctor", "--isa", "quantum"]) == 1


def test_a_context_that_does_not_fit_names_one_that_does(
    tiny_hf: Callable[..., Path], capsys: pytest.CaptureFixture[str]
) -> None:
    model = str(tiny_hf("llama"))
    assert main(["generate", model, "-p", "a", "--kv-cache-memory-bytes", "64KiB"]) == 1
    err = capsys.readouterr().err
    assert err.startswith("headrace: error: ")
    assert "--max-model-len" in err
    assert "weights" in err
    length = err.split("--max-model-len ")[1].split()[0]
    words = ["--kv-cache-memory-bytes", "64KiB", "--max-model-len", length, "--max-tokens", "1"]
    assert main(["generate", model, "-p", "a", *words]) == 0


class Screen:
    """A program in a pseudo-terminal."""

    def __init__(self, *words: str) -> None:
        self._terminal, inside = pty.openpty()
        self.process = subprocess.Popen(
            [sys.executable, "-c", RUN, *words],
            stdin=inside,
            stdout=inside,
            stderr=inside,
            start_new_session=True,
            env={**os.environ, "TERM": "dumb"},
        )
        os.close(inside)
        self.shown = ""

    def wait_for(self, text: str, *, after: int = 0, seconds: float = 60.0) -> None:
        """Read until `text` stands beyond character `after`."""
        until = time.monotonic() + seconds
        while text not in self.shown[after:]:
            left = until - time.monotonic()
            if left <= 0 or not select.select([self._terminal], [], [], left)[0]:
                pytest.fail(f"{text!r} did not come; the screen shows: {self.shown}")
            try:
                data = os.read(self._terminal, 65536)
            except OSError:
                data = b""
            if not data:
                pytest.fail(f"the program ended before {text!r}; the screen shows: {self.shown}")
            self.shown += data.decode(errors="replace")

    def type(self, text: str) -> None:
        os.write(self._terminal, text.encode())

    def close(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
        os.close(self._terminal)


@pytest.fixture
def screen(smollm2_path: Path) -> Iterator[Screen]:
    made = Screen("chat", str(smollm2_path), "--temperature", "0", *SMALL[:2], "--max-model-len", "2048")
    yield made
    made.close()


def test_ctrl_c_stops_the_answer_and_not_the_program(screen: Screen) -> None:
    screen.wait_for("> ")
    screen.type("Write a very long story about a river and a mill.\n")
    screen.wait_for("the")
    os.kill(screen.process.pid, signal.SIGINT)
    screen.wait_for("(stopped)")
    mark = len(screen.shown)
    screen.wait_for("> ")
    screen.type("/reset\n")
    screen.wait_for("(forgotten)", after=mark)
    screen.type("Name one primary colour.\n")
    mark = len(screen.shown)
    screen.wait_for("\n> ", after=mark + 1)
    screen.type("/exit\n")
    assert screen.process.wait(timeout=30) == 0
    assert "Traceback" not in screen.shown


def test_ctrl_c_at_the_prompt_says_how_to_leave_and_the_end_of_input_leaves(screen: Screen) -> None:
    screen.wait_for("> ")
    os.kill(screen.process.pid, signal.SIGINT)
    screen.wait_for("(Ctrl-D or /exit leaves)")
    # Typed before the prompt is there again it would be lost while the terminal changes its mode.
    screen.wait_for("> ", after=screen.shown.index("leaves)"))
    screen.type("\x04")
    assert screen.process.wait(timeout=30) == 0
    assert "Traceback" not in screen.shown
