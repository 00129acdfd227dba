"""EngineProcess: the engine's process from outside, as a child with a socket. Light to import: it is started first."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from typing import TYPE_CHECKING

from headrace.core.errors import HeadraceError

if TYPE_CHECKING:
    from headrace.config.engine import EngineConfig

EXIT_WAIT_S = 5.0
"""How long a child whose socket has ended may take to end by itself; then it is killed."""


class EngineProcess:
    """A fresh interpreter running the engine, and our end of the socket to it.

    `spawn` at once, `configure` when the options are known: the child imports its modules meanwhile. The web stack
    is imported after both, while the child loads.
    """

    def __init__(self, process: subprocess.Popen[bytes], sock: socket.socket) -> None:
        self._process = process
        self.socket = sock

    @classmethod
    def spawn(cls, module: str = "headrace.engine") -> EngineProcess:
        """Start `python -m <module>`. Returns at once; the child waits for its configuration.

        Call it from the main thread: only then can the kernel be asked to end the child with this process (that
        request follows the forking thread). Standard output and error are inherited. Raises HeadraceError when
        there is no interpreter to start.
        """
        if not sys.executable:
            raise HeadraceError("the path of the Python interpreter is unknown, so no engine process can be started")
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
        # -P: what lies in the working directory must not shadow the standard library.
        command = [sys.executable, "-P", "-m", module, "--fd", str(theirs.fileno()), "--parent", str(os.getpid())]
        command += ["--began", repr(time.monotonic())]
        if threading.current_thread() is threading.main_thread():
            command.append("--parent-death-signal")
        # NumPy's BLAS would start threads that spin while the server starts on the same cores; nothing here uses it.
        environment = {"OPENBLAS_NUM_THREADS": "1", **os.environ}
        try:
            with theirs:
                process = subprocess.Popen(
                    command, stdin=subprocess.DEVNULL, pass_fds=[theirs.fileno()], env=environment
                )
        except OSError as error:
            ours.close()
            raise HeadraceError(f"the engine process could not be started: {error}") from error
        return cls(process, ours)

    @classmethod
    def start(cls, config: EngineConfig, *, log_level: str = "info", module: str = "headrace.engine") -> EngineProcess:
        """`spawn` and `configure`."""
        process = cls.spawn(module)
        process.configure(config, log_level)
        return process

    def configure(self, config: EngineConfig, log_level: str = "info") -> None:
        """Say what to load. Once."""
        from headrace.engine import ipc

        with contextlib.suppress(OSError):  # a child that died at once is reported by its exit code
            self.socket.sendall(ipc.encode_frame(ipc.Configure(config, log_level)))

    @property
    def pid(self) -> int:
        return self._process.pid

    def exit_code(self) -> int | None:
        """None while it runs; negative signal number when a signal ended it. Reaps it once it has ended."""
        return self._process.poll()

    def exit_reason(self) -> str:
        """How it ended, in words."""
        code = self.exit_code()
        if code is None:
            return "the connection to the engine process was lost"
        if code >= 0:
            return f"the engine process ended with exit code {code}"
        try:
            name = signal.Signals(-code).name
        except ValueError:
            name = f"signal {-code}"
        hint = " (the kernel does that when memory runs out)" if name == "SIGKILL" else ""
        return f"the engine process was ended by {name}{hint}"

    def kill(self) -> None:
        """End it now and reap it."""
        self._process.kill()
        self._process.wait()

    def discard(self) -> None:
        """End it without waiting for anything, as when its options turn out to be wrong. Also after `close`."""
        self.socket.close()
        self.kill()

    def close(self, timeout_s: float = EXIT_WAIT_S) -> None:
        """End the connection, give it `timeout_s` to finish its step, then kill it. May be called again."""
        self.socket.close()
        try:
            self._process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            from headrace.observe import logs

            logs.logger("engine").warning("the engine process did not end by itself; killing it", pid=self.pid)
            self.kill()
