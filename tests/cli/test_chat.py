import io

import pytest

from headrace.cli import main
from headrace.cli.commands import chat
from headrace.cli.commands.chat import Conversation
from headrace.core.params import SamplingParams
from tests.cli.fakes import FakeSession


def talk(fake: FakeSession, *lines: str, system: str | None = None) -> Conversation:
    conversation = Conversation(fake, SamplingParams(max_tokens=None), system)
    for line in lines:
        conversation.take(line)
    return conversation


def test_the_conversation_is_kept() -> None:
    fake = FakeSession(["Yes", "."])
    talk(fake, "one", "two", system="Be brief")
    assert fake.prompts == ["<system>Be brief<user>one", "<system>Be brief<user>one<assistant>Yes.<user>two"]
    assert fake.specials == [False, False]


def test_reset_forgets_all_but_the_system_message() -> None:
    fake = FakeSession(["ok"])
    talk(fake, "one", "/reset", "two", system="S")
    assert fake.prompts[-1] == "<system>S<user>two"


def test_system_sets_and_removes_the_system_message() -> None:
    fake = FakeSession(["ok"])
    talk(fake, "one", "/system Be kind", "two", "/system", "three")
    assert fake.prompts == ["<user>one", "<system>Be kind<user>two", "<user>three"]


def test_ctrl_c_stops_the_answer_and_what_had_come_is_kept(capsys: pytest.CaptureFixture[str]) -> None:
    fake = FakeSession(["Once", "^C"])
    conversation = talk(fake, "story")
    assert "(stopped)" in capsys.readouterr().out
    assert [m["content"] for m in conversation.messages] == ["story", "Once"]
    fake.pieces = ["fine"]
    assert conversation.take("more")
    assert fake.prompts[-1] == "<user>story<assistant>Once<user>more"


def test_an_answer_stopped_before_its_first_word_leaves_no_trace() -> None:
    assert talk(FakeSession(["^C"]), "story").messages == []


def test_a_message_that_does_not_fit_is_taken_back(capsys: pytest.CaptureFixture[str]) -> None:
    fake = FakeSession(["ok"])
    conversation = talk(fake, "one")
    fake.pieces = ["TOO LONG"]
    assert conversation.take("long")
    assert "/reset begins anew" in capsys.readouterr().out
    assert [m["content"] for m in conversation.messages] == ["one", "ok"]


def test_commands_are_helped_with(capsys: pytest.CaptureFixture[str]) -> None:
    fake = FakeSession([])
    conversation = talk(fake, "/help", "/rest", "/xyzzy", "   ")
    out = capsys.readouterr().out
    assert "/system TEXT" in out
    assert "did you mean /reset?" in out
    assert "/help lists them" in out
    assert fake.prompts == []
    assert conversation.take("/exit") is False
    assert conversation.take("/quit") is False


@pytest.fixture
def session(monkeypatch: pytest.MonkeyPatch) -> FakeSession:
    fake = FakeSession(["Red", "."])
    monkeypatch.setattr(chat, "Session", fake)
    monkeypatch.setattr(chat, "fetch_model", lambda _config: None)
    return fake


def test_lines_may_be_piped(
    session: FakeSession, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO("a colour?\nanother?\n"))
    assert main(["chat", "--system", "S", "--temperature", "0"]) == 0
    assert capsys.readouterr().out == "Red.\nRed.\n"
    assert session.prompts[-1] == "<system>S<user>a colour?<assistant>Red.<user>another?"
    assert session.params[0].max_tokens is None
    assert session.closed


def test_a_model_without_a_chat_template_is_refused_at_once(
    session: FakeSession, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    session.has_template = False
    monkeypatch.setattr("sys.stdin", io.StringIO("hello\n"))
    assert main(["chat"]) == 2
    assert "no chat template" in capsys.readouterr().err
    assert session.prompts == []
