"""What `headrace serve` prints when it is ready: what runs, where the memory goes, and a line to try it."""

from __future__ import annotations

import json
import shlex
import socket
from collections.abc import Mapping

from headrace.config.human import format_bytes
from headrace.config.memory_table import memory_table
from headrace.config.server import ServerConfig
from headrace.core.stats import EngineInfo
from headrace.server.launch.address import url


def text(info: EngineInfo, name: str, sock: socket.socket, config: ServerConfig) -> str:
    """The whole banner."""
    base = url(sock, config)
    start_s = sum(info.startup_s.values())
    lines = [
        f"{name} ({info.architecture}, {info.max_model_len} tokens of context) is served at "
        + (f"unix:{config.uds}" if config.uds is not None else base),
        f"  {info.isa}, {info.num_threads} threads ({info.num_threads_source}); "
        f"{info.kv_tokens} tokens of KV cache; the engine took {start_s:.2f} s to start",
        "",
        *memory_table(info.memory),
        f"  budget {format_bytes(info.budget_bytes)} ({info.budget_source})",
        "",
        "Try it:",
        "  " + curl(base, name, config.uds),
        f"  API documentation: {base}/docs" if config.uds is None else "",
    ]
    return "\n".join(lines).rstrip()


def timeline(phases: Mapping[str, Mapping[str, float]]) -> list[str]:
    """Process → phase → seconds as lines; each process's phases begin with its exec and follow each other."""
    lines = []
    for process, seconds in phases.items():
        lines.append(f"  {process} process: {sum(seconds.values()) * 1e3:.0f} ms from its start to readiness")
        lines += [f"    {phase.ljust(28)} {value * 1e3:7.1f} ms" for phase, value in seconds.items()]
    return lines


def curl(base: str, name: str, uds: str | None) -> str:
    """A command to paste into a shell."""
    body = {"model": name, "messages": [{"role": "user", "content": "What is a headrace?"}], "max_tokens": 64}
    command = ["curl", "-s"]
    if uds is not None:
        command += ["--unix-socket", uds]
    command += [f"{base}/v1/chat/completions", "-H", "Content-Type: application/json", "-d", json.dumps(body)]
    return shlex.join(command)
