"""The servers that are measured: start, ready, ask, stop. Answers are not streamed, so the client sleeps meanwhile."""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import socket
import subprocess
import sys
import time
from abc import ABC, abstractmethod
from pathlib import Path
from typing import Any

START_TIMEOUT_S = 120.0
ASK_TIMEOUT_S = 600.0
STOP_TIMEOUT_S = 15.0

_MAIN = "import sys; from headrace.cli import main; sys.exit(main())"
"""The command, where it is not installed as a script."""


def free_port() -> int:
    """A TCP port of the loopback interface that nobody listens on."""
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        port: int = sock.getsockname()[1]
    return port


class Server(ABC):
    """One engine behind HTTP on the loopback interface. `start` and `stop` may alternate any number of times."""

    name: str

    def __init__(self, model: Path, log: Path, num_threads: int) -> None:
        self.model, self.num_threads = model, num_threads
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
    def ask(self, token_ids: list[int], num_tokens: int) -> None:
        """Generate exactly `num_tokens` greedily. Raises RuntimeError when the answer is anything else."""

    def start(self) -> None:
        """Spawn it; returns at once."""
        self._port = free_port()
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(self.command(self._port), stdout=log, stderr=log, stdin=subprocess.DEVNULL)

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
        """The JSON answer. Raises RuntimeError with the server's words for any status but 200."""
        connection = http.client.HTTPConnection("127.0.0.1", self._port, timeout=ASK_TIMEOUT_S)
        try:
            connection.request("POST", path, json.dumps(body), {"Content-Type": "application/json"})
            response = connection.getresponse()
            data = response.read()
        finally:
            connection.close()
        if response.status != 200:
            raise RuntimeError(f"{self.name} answered {response.status}: {data[:300].decode(errors='replace')}")
        return json.loads(data)


class Headrace(Server):
    """`headrace serve` of this interpreter, at its defaults."""

    name = "headrace"

    def command(self, port: int) -> list[str]:
        script = Path(sys.executable).with_name("headrace")
        start = (
            [str(script)] if script.exists() else [sys.executable, "-c", "from headrace.cli import main; exit(main())"]
        )
        options = ["--host", "127.0.0.1", "--port", str(port), "--num-threads", str(self.num_threads)]
        return [*start, "serve", str(self.model), *options]

    def version(self) -> str:
        import headrace

        return headrace.__version__

    def ask(self, token_ids: list[int], num_tokens: int) -> None:
        body = {"prompt": token_ids, "max_tokens": num_tokens, "temperature": 0, "ignore_eos": True}
        answer = self.post("/v1/completions", body)
        if answer["usage"]["completion_tokens"] != num_tokens:
            raise RuntimeError(f"asked for {num_tokens} tokens, got {answer['usage']}")

    def tokenize(self, text: str) -> list[int]:
        """The text's token ids, without special tokens."""
        ids: list[int] = self.post("/tokenize", {"prompt": text, "add_special_tokens": False})["tokens"]
        return ids


class LlamaCpp(Server):
    """llama-server from a llama.cpp build folder, with a KV cache of its own for each of `num_slots` requests."""

    name = "llama.cpp"

    def __init__(self, build: Path, model: Path, log: Path, num_threads: int, *, num_slots: int) -> None:
        super().__init__(model, log, num_threads)
        self._program = build / "bin" / "llama-server"
        if not os.access(self._program, os.X_OK):
            raise FileNotFoundError(f"{self._program} is not there: give the folder that llama.cpp was built in")
        self.num_slots = num_slots

    def command(self, port: int) -> list[str]:
        threads = str(self.num_threads)
        context = str(1280 * self.num_slots if self.num_slots > 1 else 2048)
        # Not -kvu: with one unified buffer every slot would attend over all slots' cells.
        options = ["-t", threads, "-tb", threads, "-c", context, "-np", str(self.num_slots)]
        return [str(self._program), "-m", str(self.model), "--host", "127.0.0.1", "--port", str(port), *options]

    def version(self) -> str:
        done = subprocess.run([self._program, "--version"], capture_output=True, text=True, check=False)
        return (done.stderr + done.stdout).strip().splitlines()[0]

    def ask(self, token_ids: list[int], num_tokens: int) -> None:
        body = {"prompt": token_ids, "n_predict": num_tokens, "temperature": 0, "top_k": 1, "ignore_eos": True}
        answer = self.post("/completion", body | {"cache_prompt": False, "stream": False})
        if answer["tokens_predicted"] != num_tokens:
            raise RuntimeError(f"asked for {num_tokens} tokens, got {answer['tokens_predicted']}")
