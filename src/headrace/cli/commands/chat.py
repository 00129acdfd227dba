"""`headrace chat`: a conversation in the terminal, with the model in this process."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterator
from typing import Any, Protocol

from headrace.cli.arguments import Parser, resolve_options
from headrace.cli.fetch import fetch_model
from headrace.cli.sampling import declare_sampling, sampling_params
from headrace.cli.session import Answer, Session
from headrace.config.engine import EngineConfig
from headrace.core.errors import ConfigError, InvalidRequestError, nearest
from headrace.core.params import SamplingParams

NAME = "chat"
SUMMARY = """\
Talk to a model. Answers stream; Ctrl-C stops an answer, not the program; Ctrl-D leaves.
Lines that begin with / are commands: /help lists them."""
USAGE = "[MODEL] [options]"
EXAMPLES = """\
  headrace chat
  headrace chat ./my-model --system "Answer in one sentence." --temperature 0
  echo "Name three primary colours." | headrace chat"""
_HELP = """\
/reset         forget the conversation (the system message stays)
/system TEXT   set the system message and begin anew; without TEXT remove it
/help          this
/exit          leave (also Ctrl-D)
Ctrl-C         stop the answer"""
_COMMANDS = ("/reset", "/system", "/help", "/exit", "/quit")


class Model(Protocol):
    """What a conversation needs of a Session."""

    def render_chat(self, messages: list[dict[str, Any]]) -> str: ...

    def ask(
        self,
        prompt: str,
        params: SamplingParams,
        answer: Answer,
        on_text: Callable[[str], None],
        *,
        add_special_tokens: bool = True,
    ) -> None: ...


def declare(parser: Parser) -> None:
    """Declare the command's arguments."""
    parser.add_model()
    parser.add_argument("--system", metavar="TEXT", help="system message")
    declare_sampling(parser, temperature=0.7, max_tokens=None)
    parser.add_options(EngineConfig, skip=("served_model_name",))


def run(namespace: argparse.Namespace) -> int:
    """Talk until the input ends; raises HeadraceError when the model cannot be loaded or has no chat template."""
    config, _ = resolve_options(namespace)
    params = sampling_params(namespace)
    fetch_model(config)
    terminal = sys.stdin.isatty()
    if terminal:
        print(f"loading {config.model} ...", file=sys.stderr, flush=True)
        # Only its import matters: it gives `input` line editing and a history.
        import readline  # noqa: F401
    with Session(config) as session:
        conversation = Conversation(session, params, namespace.system)
        conversation.check_template()
        if terminal:
            print("Type a message; /help for commands, Ctrl-D to leave.")
        for line in _lines(terminal):
            if not conversation.take(line):
                break
    return 0


class Conversation:
    """The messages so far, and what to do with a line that was typed."""

    def __init__(self, model: Model, params: SamplingParams, system: str | None = None) -> None:
        self._model, self._params = model, params
        self._system = system
        self.messages: list[dict[str, Any]] = []
        self.reset()

    def reset(self) -> None:
        """Forget everything but the system message."""
        self.messages = [{"role": "system", "content": self._system}] if self._system else []

    def check_template(self) -> None:
        """Raise ConfigError now if the model cannot chat, rather than at the first message."""
        try:
            self._model.render_chat([{"role": "user", "content": "x"}])
        except InvalidRequestError as error:
            raise ConfigError(f"{error.message}; `headrace generate` needs none", param="chat_template") from None

    def take(self, line: str) -> bool:
        """Answer a line, or do what it commands. False when the conversation is over."""
        text = line.strip()
        if not text:
            return True
        if text.startswith("/"):
            return self._command(text)
        self._answer(text)
        return True

    def _command(self, text: str) -> bool:
        word, _, rest = text.partition(" ")
        if word in ("/exit", "/quit"):
            return False
        if word == "/help":
            print(_HELP)
        elif word == "/reset":
            self.reset()
            print("(forgotten)")
        elif word == "/system":
            self._system = rest.strip() or None
            self.reset()
            print("(system message set, conversation forgotten)" if self._system else "(no system message)")
        else:
            guess = nearest(word, _COMMANDS)
            print(f"unknown command {word}" + (f"; did you mean {guess}?" if guess else "; /help lists them"))
        return True

    def _answer(self, text: str) -> None:
        self.messages.append({"role": "user", "content": text})
        answer = Answer()
        note = ""
        try:
            prompt = self._model.render_chat(self.messages)
            self._model.ask(prompt, self._params, answer, _print_piece, add_special_tokens=False)
        except KeyboardInterrupt:
            note = " (stopped)"
        except InvalidRequestError as error:
            # Too long a conversation, most likely: the message is taken back and the program goes on.
            self.messages.pop()
            print(f"{error.message}; /reset begins anew")
            return
        if answer.finish_reason == "length":
            note = " (cut: the longest answer is reached)"
        print(note, flush=True)
        if answer.text:
            self.messages.append({"role": "assistant", "content": answer.text})
        else:
            self.messages.pop()


def _lines(terminal: bool) -> Iterator[str]:
    """Typed lines until the input ends. Ctrl-C at the prompt clears the line."""
    while True:
        try:
            yield input("> " if terminal else "")
        except EOFError:
            if terminal:
                print()
            return
        except KeyboardInterrupt:
            print("\n(Ctrl-D or /exit leaves)")


def _print_piece(text: str) -> None:
    sys.stdout.write(text)
    sys.stdout.flush()
