"""`headrace serve`: sockets, the engine process, the web server, signals, in the order that makes starting fast.

The address is taken first, so that a used port fails before a model is loaded; then the engine process starts to
load, and the web stack is imported meanwhile. While the engine loads, the server answers 503.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import signal
import socket
import sys
from typing import TYPE_CHECKING

from headrace.config.engine import EngineConfig
from headrace.config.server import ServerConfig
from headrace.core.errors import ConfigError, HeadraceError
from headrace.core.garbage import resume_collection
from headrace.engine.process.child import EngineProcess
from headrace.observe import logs
from headrace.observe.timeline import Timeline
from headrace.server.launch.address import listen, release

if TYPE_CHECKING:
    import uvicorn

    from headrace.engine.async_llm import AsyncLLM

EXIT_OK, EXIT_FAILED, EXIT_USAGE = 0, 1, 2


def run(
    engine_config: EngineConfig,
    server_config: ServerConfig,
    process: EngineProcess | None = None,
    timeline: Timeline | None = None,
) -> int:
    """Serve until SIGTERM or SIGINT; the exit status: 0 after a signal, 1 when it could not start,
    2 when an option is wrong. process: an engine's that waits for its options; the caller closes it."""
    timeline = timeline or Timeline()
    logs.setup(server_config.log_level)
    try:
        sock = listen(server_config)
    except HeadraceError as error:
        return _failed(error)
    try:
        engine = process or EngineProcess.spawn()
    except HeadraceError as error:
        release(sock, server_config)
        return _failed(error)
    try:
        engine.configure(engine_config, server_config.log_level)
        timeline.end("address and engine process")
        return _run_with(engine, sock, engine_config, server_config, timeline)
    finally:
        engine.close()
        release(sock, server_config)


def _run_with(
    process: EngineProcess,
    sock: socket.socket,
    engine_config: EngineConfig,
    server_config: ServerConfig,
    timeline: Timeline,
) -> int:
    from headrace.engine.async_llm import AsyncLLM
    from headrace.engine.process.remote import RemoteEngine
    from headrace.server.app import make_app
    from headrace.server.launch.web import make_server

    llm = AsyncLLM(engine_config, client=RemoteEngine(process), timeline=timeline)
    timeout_s = math.ceil(server_config.shutdown_timeout)
    server = make_server(make_app(llm, server_config), server_config.root_path, timeout_s)
    timeline.end("web server")
    return asyncio.run(_serve(llm, server, sock, server_config))


async def _serve(llm: AsyncLLM, server: uvicorn.Server, sock: socket.socket, config: ServerConfig) -> int:
    loop = asyncio.get_running_loop()
    starting = loop.create_task(llm.start())

    def stop() -> None:
        """The first signal lets running requests finish, the second does not."""
        server.force_exit = server.should_exit
        server.should_exit = True
        starting.cancel()

    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stop)
    serving = loop.create_task(server.serve(sockets=[sock]))
    try:
        await asyncio.wait({starting, serving}, return_when=asyncio.FIRST_COMPLETED)
        if not starting.done():
            serving.result()
        info = await starting
        resume_collection()
        from headrace.server.launch import banner

        print(banner.text(info, llm.model_name, sock, config), flush=True)
        if config.verbose:
            print("\n".join(["", *banner.timeline(llm.startup_s)]), flush=True)
        await serving
        return EXIT_OK
    except asyncio.CancelledError:
        return EXIT_OK
    except HeadraceError as error:
        return _failed(error)
    finally:
        server.should_exit = True
        starting.cancel()
        await asyncio.gather(serving, starting, return_exceptions=True)
        with contextlib.suppress(HeadraceError):
            await llm.close()


def _failed(error: HeadraceError) -> int:
    print(f"headrace: error: {error.message}", file=sys.stderr, flush=True)
    return EXIT_USAGE if isinstance(error, ConfigError) else EXIT_FAILED
