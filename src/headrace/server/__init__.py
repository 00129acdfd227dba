"""The HTTP server: OpenAI's API over an asynchronous engine.

Owns schemas, routes, errors, limits and server-sent events; the path is JSON → schema → validated generation →
deltas → JSON or events, the same for streaming and not. Text and sampling rules live elsewhere. Imports neither
NumPy nor a tensor library, and nothing of `cli`. The web stack is imported by `make_app` and `run`, not before.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from starlette.applications import Starlette

    from headrace.config.engine import EngineConfig
    from headrace.config.server import ServerConfig
    from headrace.engine.process.child import EngineProcess
    from headrace.observe.timeline import Timeline
    from headrace.server.serving import AsyncEngine

__all__ = ["make_app", "run"]


def make_app(llm: AsyncEngine, config: ServerConfig) -> Starlette:
    """The ASGI application over `llm`, which the caller starts and closes."""
    from headrace.server.app import make_app as build

    return build(llm, config)


def run(
    engine_config: EngineConfig,
    server_config: ServerConfig,
    process: EngineProcess | None = None,
    timeline: Timeline | None = None,
) -> int:
    """Serve until SIGTERM or SIGINT; the exit status. The engine runs in a child process.

    process: a child that waits for its options, closed by the caller; None: one is started here.
    timeline: of a start that began before.
    """
    from headrace.server.launch.serve import run as serve

    return serve(engine_config, server_config, process, timeline)
