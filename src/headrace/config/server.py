"""ServerConfig: where and how the HTTP server listens."""

from __future__ import annotations

from dataclasses import dataclass

from headrace.config.options import Options, option


@dataclass(frozen=True, kw_only=True)
class ServerConfig(Options):
    """Options of the HTTP server. The names it serves are the engine's (`EngineConfig.served_model_name`)."""

    host: str = option(
        "127.0.0.1", unit="address", group="server", help="address to listen on; 0.0.0.0 is every interface"
    )
    port: int = option(
        8000, unit="number", group="server", minimum=0, maximum=65535, help="TCP port; 0 takes a free one"
    )
    uds: str | None = option(
        None, unit="path", group="server", help="listen on a Unix domain socket instead of host and port"
    )
    root_path: str = option(
        "", unit="URL path", group="server", help="prefix under which a reverse proxy serves the API"
    )
    log_level: str = option(
        "info",
        unit="choice",
        env="HEADRACE_LOG_LEVEL",
        group="server",
        choices=("debug", "info", "warning", "error"),
        help="least severe log lines to print",
    )
    shutdown_timeout: float = option(
        5.0,
        unit="seconds",
        group="server",
        minimum=0.0,
        maximum=3600.0,
        help="time that running requests have to finish after SIGTERM or Ctrl-C",
    )
    verbose: bool = option(
        False,
        unit="switch",
        group="server",
        help="print the start-up timeline; GET /v1/engine/startup has it in any case",
    )
