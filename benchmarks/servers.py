"""The engines that are measured: start, ready, ask, stop. Answers are not streamed, so the client sleeps meanwhile."""

from __future__ import annotations

import contextlib
import enum
import http.client
import json
import os
import socket
import subprocess
import sys
import time
from abc import ABC, abstractmethod
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

START_TIMEOUT_S = 120.0
ASK_TIMEOUT_S = 600.0
STOP_TIMEOUT_S = 15.0


class NotThereError(Exception):
    """The engine is not installed or not built here."""


class Purpose(enum.Enum):
    """How an engine is started: with room for 32 requests, as one user would, or for one long context."""

    RATES = "rates"
    SINGLE = "single"
    LONG = "long"


def free_port() -> int:
    """A TCP port of the loopback interface that nobody listens on."""
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        port: int = sock.getsockname()[1]
    return port


class Server(ABC):
    """One engine behind HTTP on the loopback interface. `start` and `stop` may alternate any number of times."""

    def __init__(self, name: str, model: Path, log: Path, num_threads: int, purpose: Purpose = Purpose.RATES) -> None:
        self.name, self.model, self.num_threads, self.purpose = name, model, num_threads, purpose
        self._log = log
        self._port = 0
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def pid(self) -> int:
        """0 while it is not running."""
        return 0 if self._process is None else self._process.pid

    @abstractmethod
    def command(self, port: int) -> list[str]:
        """The command line that serves on `port`."""

    @abstractmethod
    def version(self) -> str:
        """What exactly is measured."""

    @abstractmethod
    def ask(self, token_ids: list[int], num_tokens: int, *, reuse: bool = False) -> None:
        """Generate exactly `num_tokens` greedily. Raises RuntimeError when the answer is anything else.

        reuse: what a prompt shares with earlier ones need not be computed again, where the engine can choose.
        """

    def ask_all(self, prompts: list[list[int]], num_tokens: int, *, reuse: bool = False) -> None:
        """`ask` for all of them at once."""
        with ThreadPoolExecutor(len(prompts)) as clients:
            list(clients.map(lambda ids: self.ask(ids, num_tokens, reuse=reuse), prompts))

    def environment(self) -> dict[str, str]:
        """Variables to set for it."""
        return {}

    def folder(self) -> Path | None:
        """Where it runs; None: here."""
        return None

    def start(self) -> None:
        """Spawn it; returns at once."""
        self._port = free_port()
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(
                self.command(self._port),
                stdout=log,
                stderr=log,
                stdin=subprocess.DEVNULL,
                env={**os.environ, **self.environment()},
                cwd=self.folder(),
            )

    def wait_until_ready(self) -> None:
        """Until /health says 200. Raises RuntimeError when it ends or takes too long."""
        deadline_s = time.monotonic() + START_TIMEOUT_S
        while time.monotonic() < deadline_s:
            if self._process is None or self._process.poll() is not None:
                raise RuntimeError(f"{self.name} ended while starting; see {self._log}")
            with contextlib.suppress(OSError):
                connection = http.client.HTTPConnection("127.0.0.1", self._port, timeout=2)
                connection.request("GET", "/health")
                if connection.getresponse().status == 200:
                    return
            time.sleep(0.005)
        raise RuntimeError(f"{self.name} was not ready within {START_TIMEOUT_S:g} s; see {self._log}")

    def stop(self) -> None:
        """Ask it to end, and kill it when that does not help."""
        process, self._process = self._process, None
        if process is None:
            return
        process.terminate()
        try:
            process.wait(STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()

    def post(self, path: str, body: dict[str, Any]) -> Any:
        """The JSON answer. Raises RuntimeError with the server's words for any status but 200, and when it is gone."""
        connection = http.client.HTTPConnection("127.0.0.1", self._port, timeout=ASK_TIMEOUT_S)
        try:
            connection.request("POST", path, json.dumps(body), {"Content-Type": "application/json"})
            response = connection.getresponse()
            data = response.read()
        except (OSError, http.client.HTTPException) as error:
            raise RuntimeError(f"{self.name} did not answer ({error!r}); see {self._log}") from error
        finally:
            connection.close()
        if response.status != 200:
            raise RuntimeError(f"{self.name} answered {response.status}: {data[:300].decode(errors='replace')}")
        return json.loads(data)


class Headrace(Server):
    """`headrace serve` of this interpreter, at its defaults but for `isa` and `options`."""

    def __init__(
        self,
        name: str,
        model: Path,
        log: Path,
        num_threads: int,
        purpose: Purpose = Purpose.RATES,
        *,
        isa: str | None = None,
        options: tuple[str, ...] = (),
    ) -> None:
        super().__init__(name, model, log, num_threads, purpose)
        self._isa, self._options = isa, options

    def environment(self) -> dict[str, str]:
        return {} if self._isa is None else {"HEADRACE_ISA": self._isa}

    def command(self, port: int) -> list[str]:
        script = Path(sys.executable).with_name("headrace")
        start = (
            [str(script)] if script.exists() else [sys.executable, "-c", "from headrace.cli import main; exit(main())"]
        )
        options = ["--host", "127.0.0.1", "--port", str(port), "--num-threads", str(self.num_threads), *self._options]
        if self.purpose is Purpose.LONG:
            options += ["--max-num-seqs", "1"]
        return [*start, "serve", str(self.model), *options]

    def version(self) -> str:
        import headrace

        return headrace.__version__

    def ask(self, token_ids: list[int], num_tokens: int, *, reuse: bool = False) -> None:  # noqa: ARG002
        body = {"prompt": token_ids, "max_tokens": num_tokens, "temperature": 0, "ignore_eos": True}
        answer = self.post("/v1/completions", body)
        if answer["usage"]["completion_tokens"] != num_tokens:
            raise RuntimeError(f"asked for {num_tokens} tokens, got {answer['usage']}")

    def tokenize(self, text: str) -> list[int]:
        """The text's token ids, without special tokens."""
        ids: list[int] = self.post("/tokenize", {"prompt": text, "add_special_tokens": False})["tokens"]
        return ids
