"""Finding the command, running it, and turning every expected failure into one line and an exit status."""

from __future__ import annotations

import contextlib
import importlib
import os
import sys
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Protocol, cast

import headrace
from headrace.core.errors import ConfigError, HeadraceError, unknown_name_message

if TYPE_CHECKING:
    import argparse

    from headrace.cli.arguments import Parser
    from headrace.engine.process.child import EngineProcess
    from headrace.observe.timeline import Timeline

OVERVIEW = """\
headrace: serve, script and chat with language models on a CPU.

  headrace chat                     talk to the demo model in this terminal
  headrace serve                    serve it on http://127.0.0.1:8000 with OpenAI's API
  headrace generate -p "Once upon"  continue a text (also from standard input)

  headrace pull smollm2             fetch the demo model now instead of at first use
  headrace plan show MODEL          what would run, call by call; `plan diff A B` compares two
  headrace bench roofline           what this machine can give at best, and each kernel's share of it
  headrace doctor                   what this machine grants: kernels, threads, memory

Each takes MODEL: smollm2 (the demo, the default), a .gguf file, a folder in Hugging Face layout, or org/name of the
Hugging Face cache. `headrace COMMAND --help` explains the rest.
"""


class _Command(Protocol):
    """What a module of commands/ offers."""

    SUMMARY: str
    USAGE: str
    EXAMPLES: str

    def declare(self, parser: Parser) -> None: ...

    def run(self, namespace: argparse.Namespace) -> int: ...


_COMMANDS = ("serve", "chat", "generate", "pull", "plan", "bench", "doctor")
"""Each is a module of commands/, imported when it is the one that was typed."""
_ELSEWHERE = {
    "complete": "generate",
    "run": "chat",
    "collect-env": "doctor",
    "launch": "serve",
    "info": "doctor",
    "download": "pull",
}
_USAGE, _FAILURE, _INTERRUPTED = 2, 1, 130


def run(argv: Sequence[str] | None = None) -> int:
    """`main` without the lazy import. Prints errors to standard error; raises SystemExit only for --help."""
    words = list(sys.argv[1:] if argv is None else argv)
    try:
        if not words or words[0] in ("-h", "--help", "help"):
            print(OVERVIEW, end="")
            return 0
        if words[0] in ("-V", "--version", "version"):
            print(f"headrace {headrace.__version__}")
            return 0
        return _run_command(words[0], words[1:])
    except ConfigError as error:
        return _report(error, _USAGE)
    except HeadraceError as error:
        return _report(error, _FAILURE)
    except KeyboardInterrupt:
        print("", file=sys.stderr)
        return _INTERRUPTED
    except BrokenPipeError:
        # Whoever read the output has enough; the interpreter must not complain when it flushes at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return _FAILURE


def _run_command(name: str, words: list[str]) -> int:
    if name not in _COMMANDS:
        if name.startswith("-"):
            raise ConfigError(f"the command comes first: headrace {' | '.join(_COMMANDS)}")
        meant = _ELSEWHERE.get(name)
        message = unknown_name_message("command", name, _COMMANDS)
        raise ConfigError(f"unknown command {name!r}; headrace calls it {meant!r}" if meant else message)
    with _head_start(name, words) as started:
        from headrace.cli.arguments import Parser

        module = cast(_Command, importlib.import_module(f"headrace.cli.commands.{name}"))
        usage = module.USAGE
        parser = Parser(prog=f"headrace {name}", usage=usage, description=module.SUMMARY, examples=module.EXAMPLES)
        module.declare(parser)
        namespace = parser.parse_words(words)
        namespace.started = started
        return module.run(namespace)


@contextlib.contextmanager
def _head_start(name: str, words: Sequence[str]) -> Iterator[tuple[EngineProcess, Timeline] | None]:
    """For `serve`: its engine process, which imports its modules while this one imports and reads options."""
    if name != "serve" or not {"-h", "--help"}.isdisjoint(words):
        yield None
        return
    from headrace.core.garbage import pause_collection, resume_collection
    from headrace.engine.process.child import EngineProcess
    from headrace.observe.timeline import Timeline, process_began_s

    pause_collection()
    timeline = Timeline(process_began_s())
    timeline.end("interpreter")
    process = EngineProcess.spawn()
    try:
        yield process, timeline
    finally:
        process.discard()
        resume_collection()


def _report(error: HeadraceError, status: int) -> int:
    """One line; what a message carries beyond its first line (the memory table) follows it as it is."""
    first, _, rest = error.message.partition("\n")
    print(f"headrace: error: {first}" + (f"\n{rest}" if rest else ""), file=sys.stderr)
    return status
