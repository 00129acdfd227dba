"""The engine process from inside: one thread reads the socket, the main thread steps the core.

The process lives as long as its socket. When the server's end closes (by intent, or because the server died) the loop
ends after the step under way; if it is still loading or stuck, the reading thread ends the process a little later.
"""

from __future__ import annotations

import collections
import ctypes
import os
import signal
import socket
import sys
import threading
from collections.abc import Callable
from typing import Protocol

from headrace.config.engine import EngineConfig
from headrace.core.errors import HeadraceError
from headrace.core.garbage import resume_collection
from headrace.core.outputs import TokenDelta
from headrace.core.request import EngineRequest
from headrace.core.stats import EngineInfo, EngineStats
from headrace.engine import ipc
from headrace.observe import logs

_PR_SET_PDEATHSIG = 1
_GRACE_S = 2.0
"""How long a step may go on after the socket has ended."""

EXIT_OK, EXIT_FAILED, EXIT_ABANDONED = 0, 1, 3

_log = logs.logger("engine")


class Core(Protocol):
    """What a worker needs of `headrace.engine.core.EngineCore`. Called from one thread only."""

    @property
    def info(self) -> EngineInfo: ...
    @property
    def has_work(self) -> bool: ...
    def add(self, request: EngineRequest) -> None: ...
    def abort(self, request_id: str) -> None: ...
    def step(self) -> list[TokenDelta]: ...
    def stats(self) -> EngineStats: ...
    def close(self) -> None: ...


CoreFactory = Callable[[EngineConfig], Core]


class Worker:
    """Serves one core on one socket until the socket ends or the core fails. `run` returns the exit code."""

    def __init__(self, sock: socket.socket, make_core: CoreFactory, preload: Callable[[], None] | None = None) -> None:
        self._connection = ipc.BlockingConnection(sock)
        self._make_core, self._preload = make_core, preload
        self._inbox: collections.deque[ipc.ToEngine] = collections.deque()
        self._wake = threading.Condition()
        self._ended = False
        self._fault: ipc.ProtocolError | None = None
        self._finished = threading.Event()

    def run(self) -> int:
        """Import, configure, load, say Ready, then step while there is work and sleep while there is none."""
        threading.Thread(target=self._read, name="headrace-socket", daemon=True).start()
        try:
            return self._serve()
        except ipc.ProtocolError as error:
            self._say_failure(error)
            return EXIT_FAILED
        except Exception as error:
            _log.exception("the engine failed", error=type(error).__name__)
            self._say_failure(error)
            return EXIT_FAILED
        finally:
            self._finished.set()
            self._connection.close()

    def _serve(self) -> int:
        if self._preload is not None:
            self._preload()
        configure = self._next_message()
        if self._fault is not None:
            raise self._fault
        if configure is None:
            return EXIT_OK
        if not isinstance(configure, ipc.Configure):
            _log.error("closing the connection", reason="the first message is not configure")
            raise ipc.ProtocolError(f"the first message must be configure, got {type(configure).__name__}")
        logs.set_level(configure.log_level)
        try:
            core = self._make_core(configure.config)
        except HeadraceError as error:  # a fault of the set-up, not of the code: the server shows it
            _log.debug("the engine could not start", error=type(error).__name__)
            self._say_failure(error)
            return EXIT_FAILED
        resume_collection()
        try:
            self._connection.send(ipc.Ready(core.info))
            self._loop(core)
        except (BrokenPipeError, ConnectionResetError):
            pass  # the server is gone; nobody is left to be told
        finally:
            core.close()
        if self._fault is not None:
            raise self._fault
        return EXIT_OK

    def _loop(self, core: Core) -> None:
        while self._take_messages(core):
            deltas = core.step()
            if deltas:
                self._connection.send(ipc.Deltas(deltas))

    def _take_messages(self, core: Core) -> bool:
        """Handle what has arrived; wait while there is nothing to do. False when the socket has ended."""
        while not self._ended:
            while self._inbox:
                self._handle(core, self._inbox.popleft())
            if core.has_work:
                return True
            with self._wake:
                self._wake.wait_for(lambda: self._inbox or self._ended)
        return False

    def _handle(self, core: Core, message: ipc.ToEngine) -> None:
        if isinstance(message, ipc.Add):
            self._add(core, message.request)
        elif isinstance(message, ipc.Abort):
            core.abort(message.request_id)
        elif isinstance(message, ipc.StatsQuery):
            self._connection.send(ipc.Stats(message.query_id, core.stats()))
        else:
            raise ipc.ProtocolError("a second configure message")

    def _add(self, core: Core, request: EngineRequest) -> None:
        """A request that the core refuses ends alone, with the reason."""
        try:
            core.add(request)
        except Exception as error:
            _log.exception("a request could not be added", request_id=request.request_id)
            fault = TokenDelta(request_id=request.request_id, finish_reason="error", error=str(error))
            self._connection.send(ipc.Deltas([fault]))

    def _next_message(self) -> ipc.ToEngine | None:
        with self._wake:
            self._wake.wait_for(lambda: self._inbox or self._ended)
            return self._inbox.popleft() if self._inbox else None

    def _say_failure(self, error: Exception) -> None:
        try:
            self._connection.send(ipc.failure_from(error))
        except (OSError, ipc.ProtocolError):
            _log.warning("the server could not be told of the failure")

    def _read(self) -> None:
        """The reading thread: socket → inbox. Whatever ends it ends the process."""
        try:
            while (messages := self._connection.receive()) is not None:
                if messages:
                    with self._wake:
                        self._inbox.extend(messages)
                        self._wake.notify()
        except ipc.ProtocolError as error:
            _log.error("closing the connection", reason=str(error))
            self._fault = error
        except OSError as error:
            _log.debug("the socket broke", reason=str(error))
        with self._wake:
            self._ended = True
            self._wake.notify()
        if not self._finished.wait(_GRACE_S):
            _log.warning("the server is gone and the engine is still busy; ending the process")
            os._exit(EXIT_ABANDONED)


def die_with_parent(parent_pid: int, *, signal_too: bool) -> None:
    """Second line of defence beside the socket, in case something else holds its other end open.

    The kernel's parent-death signal follows the *thread* that forked, so it is asked for only when that was the main
    thread (`signal_too`). A parent that died before this call is noticed by its pid.
    """
    if signal_too:
        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent_pid:
        os._exit(EXIT_ABANDONED)


def main(make_core: CoreFactory, preload: Callable[[], None] | None = None) -> int:
    """Entry of the child process; `headrace.engine.process` writes the arguments.

    preload: imports what `make_core` needs, while the server still reads its options.
    """
    # By hand, not by argparse: nobody types these, and a process that users wait for imports little.
    given = sys.argv[1:]
    try:
        descriptor, parent = (int(given[given.index(name) + 1]) for name in ("--fd", "--parent"))
    except (ValueError, IndexError):
        print("python -m headrace.engine is started by `headrace serve`, of no use by hand", file=sys.stderr)
        return EXIT_FAILED
    die_with_parent(parent, signal_too="--parent-death-signal" in given)
    # Ctrl-C and a service manager's SIGTERM reach the whole group; the server drains first and then closes the socket.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    logs.setup()
    with socket.socket(fileno=descriptor) as sock:
        return Worker(sock, make_core, preload).run()


def began_s() -> float | None:
    """When the server started this process, by `time.monotonic()`, if it said so."""
    given = sys.argv[1:]
    return float(given[given.index("--began") + 1]) if "--began" in given else None
