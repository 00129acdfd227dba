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
from headrace.engine.process import EngineProcess, RemoteEngine
from headrace.observe import logs
from headrace.server.launch import banner
from headrace.server.launch.address import listen, release

if TYPE_CHECKING:
    import uvicorn

    from headrace.engine.async_llm import AsyncLLM

EXIT_OK, EXIT_FAILED, EXIT_USAGE = 0, 1, 2


def run(engine_config: EngineConfig, server_config: ServerConfig) -> int:
    """Serve until SIGTERM or SIGINT; the exit status: 0 after a signal, 1 when it could not start,
    2 when an option is wrong."""
    logs.setup(server_config.log_level)
    try:
        sock = listen(server_config)
    except HeadraceError as error:
        return _failed(error)
    try:
        process = EngineProcess.start(engine_config, log_level=server_config.log_level)
    except HeadraceError as error:
        release(sock, server_config)
        return _failed(error)
    try:
        return _run_with(process, sock, engine_config, server_config)
    finally:
        process.close()
        release(sock, server_config)


def _run_with(
    process: EngineProcess, sock: socket.socket, engine_config: EngineConfig, server_config: ServerConfig
) -> int:
    from headrace.engine.async_llm import AsyncLLM
    from headrace.server.app import make_app
    from headrace.server.launch.web import make_server

    llm = AsyncLLM(engine_config, client=RemoteEngine(process))
    timeout_s = math.ceil(server_config.shutdown_timeout)
    server = make_server(make_app(llm, server_config), server_config.root_path, timeout_s)
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
        print(banner.text(info, llm.model_name, sock, config), flush=True)
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
