"""`headrace serve`: the HTTP server, with the engine in its own process."""

from __future__ import annotations

import argparse

from headrace.cli.arguments import Parser, resolve_options
from headrace.cli.fetch import fetch_model
from headrace.config.engine import EngineConfig
from headrace.config.server import ServerConfig

NAME = "serve"
SUMMARY = """\
Serve a model over HTTP with OpenAI's API: /v1/chat/completions, /v1/completions, /v1/models, and
/health, /metrics, /docs beside them. Options have vLLM's names where vLLM has them."""
USAGE = "[MODEL] [options]"
EXAMPLES = """\
  headrace serve                                        the demo model on http://127.0.0.1:8000
  headrace serve model.gguf --port 9000 --max-model-len 4K
  headrace serve ./my-model --served-model-name mine --host 0.0.0.0
  headrace serve --memory-budget-bytes 2GiB --num-threads 2
  headrace serve --config serve.yaml                    the same options in a file"""


def declare(parser: Parser) -> None:
    """Declare the command's arguments."""
    parser.add_model()
    parser.add_options(EngineConfig, ServerConfig)


def run(namespace: argparse.Namespace) -> int:
    """Fetch the model if need be, then serve until a signal; the exit status."""
    engine_config, server_config = resolve_options(namespace)
    process, timeline = namespace.started or (None, None)
    if timeline is not None:
        timeline.end("command line")
    fetch_model(engine_config)
    if timeline is not None:
        timeline.end("model file")
    from headrace.server import run as serve

    return serve(engine_config, server_config, process, timeline)
