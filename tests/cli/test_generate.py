import io
import json

import pytest

from headrace.cli import main
from headrace.cli.commands import generate
from tests.cli.fakes import FakeSession


@pytest.fixture
def session(monkeypatch: pytest.MonkeyPatch) -> FakeSession:
    fake = FakeSession([" Par", "is."])
    monkeypatch.setattr(generate, "Session", fake)
    monkeypatch.setattr(generate, "fetch_model", lambda _config: None)
    return fake


def test_the_text_is_printed_as_it_comes(session: FakeSession, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["generate", "m.gguf", "-p", "The capital", "--max-tokens", "8", "--stop", "x", "--stop", "y"]) == 0
    assert capsys.readouterr().out == " Paris.\n"
    assert session.prompts == ["The capital"]
    assert session.specials == [True]
    params = session.params[0]
    assert (params.max_tokens, params.temperature, params.stop) == (8, 0.0, ("x", "y"))
    assert session.config is not None
    assert session.config.model == "m.gguf"
    assert session.closed


@pytest.mark.usefixtures("session")
def test_json_is_one_object(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["generate", "-p", "Hi", "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert (report["text"], report["finish_reason"], report["usage"]["completion_tokens"]) == (" Paris.", "stop", 2)
    assert report["model"] == "smollm2"


def test_chat_uses_the_template_without_more_special_tokens(session: FakeSession) -> None:
    assert main(["generate", "--chat", "-p", "Hi"]) == 0
    assert session.prompts == ["<user>Hi"]
    assert session.specials == [False]


def test_the_prompt_may_be_standard_input(session: FakeSession, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO("from a pipe\n"))
    assert main(["generate"]) == 0
    assert session.prompts == ["from a pipe\n"]


@pytest.mark.usefixtures("session")
def test_no_prompt_at_all_is_a_usage_error(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO(""))
    assert main(["generate"]) == 2
    assert "standard input is empty" in capsys.readouterr().err


def test_ctrl_c_keeps_what_had_come(session: FakeSession, capsys: pytest.CaptureFixture[str]) -> None:
    session.pieces = [" Par", "^C"]
    assert main(["generate", "-p", "x"]) == 130
    assert capsys.readouterr().out.startswith(" Par")
    assert session.closed
