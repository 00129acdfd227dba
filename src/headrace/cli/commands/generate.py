"""`headrace generate`: continue a text once and print the result."""

from __future__ import annotations

import argparse
import json
import sys
from typing import Any

from headrace.cli.arguments import Parser, resolve_options
from headrace.cli.fetch import fetch_model
from headrace.cli.sampling import declare_sampling, sampling_params
from headrace.cli.session import Answer, Session
from headrace.config.engine import EngineConfig
from headrace.core.errors import ConfigError

NAME = "generate"
SUMMARY = """\
Continue a text and print the continuation as it comes. The text is -p's, or standard input. With --chat the text is
a user's message, put through the model's chat template."""
USAGE = "[MODEL] [-p TEXT] [options]"
EXAMPLES = """\
  headrace generate -p "The capital of France is" --max-tokens 8
  headrace generate --chat -p "Name three primary colours." --temperature 0.7
  cat letter.txt | headrace generate model.gguf --json > answer.json"""


def declare(parser: Parser) -> None:
    """Declare the command's arguments."""
    parser.add_model()
    parser.add_argument("-p", "--prompt", metavar="TEXT", help="the text to continue (default: standard input)")
    parser.add_argument("--chat", action="store_true", help="use the chat template")
    parser.add_argument("--json", action="store_true", help="print one JSON object at the end instead of the text")
    declare_sampling(parser, temperature=0.0, max_tokens=256)
    parser.add_options(EngineConfig, skip=("served_model_name",))


def run(namespace: argparse.Namespace) -> int:
    """Generate; raises HeadraceError. After Ctrl-C what had come stays printed and the status is 130."""
    config, _ = resolve_options(namespace)
    params = sampling_params(namespace)
    text = _prompt(namespace)
    fetch_model(config)
    answer = Answer()
    with Session(config) as session:
        prompt = session.render_chat([{"role": "user", "content": text}]) if namespace.chat else text
        session.ask(
            prompt,
            params,
            answer,
            _ignore if namespace.json else _print_piece,
            add_special_tokens=not namespace.chat,
        )
    if namespace.json:
        print(json.dumps(_report(config, prompt, answer), ensure_ascii=False))
    else:
        print()
    return 0


def _prompt(namespace: argparse.Namespace) -> str:
    if namespace.prompt is not None:
        return str(namespace.prompt)
    if sys.stdin is None or sys.stdin.isatty():
        raise ConfigError("give a text with -p, or on standard input (see `headrace generate --help`)")
    text = sys.stdin.read()
    if not text:
        raise ConfigError("standard input is empty; give a text there or with -p")
    return text


def _print_piece(text: str) -> None:
    sys.stdout.write(text)
    sys.stdout.flush()


def _ignore(_text: str) -> None:
    pass


def _report(config: EngineConfig, prompt: str, answer: Answer) -> dict[str, Any]:
    return {
        "model": config.model,
        "prompt": prompt,
        "text": answer.text,
        "token_ids": answer.token_ids,
        "finish_reason": answer.finish_reason,
        "stop_reason": answer.stop_reason,
        "usage": {
            "prompt_tokens": answer.num_prompt_tokens,
            "completion_tokens": len(answer.token_ids),
            "cached_tokens": answer.num_cached_tokens,
        },
        "first_token_s": round(answer.first_token_s, 6),
        "total_s": round(answer.total_s, 6),
    }
