"""A real server process with a real (tiny) model: started from the command line, found by what it prints."""

from __future__ import annotations

import ctypes
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx

from tests.fixtures.tiny_models import SPECS, write_hf

START_S = 60.0
COMMAND = [sys.executable, "-c", "import sys; from headrace.cli import main; sys.exit(main())", "serve"]
CONTEXT = 2048
"""Of the tiny model that these servers run."""


_PR_SET_PDEATHSIG = 1
_LIBC = ctypes.CDLL(None)


def _end_with_parent() -> None:
    """In the child: end when the test process does, so that a crash of it leaves no server behind."""
    _LIBC.prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)


def write_model(folder: Path) -> Path:
    """A tiny llama with a context of CONTEXT tokens."""
    return write_hf(replace(SPECS["llama"], max_position_embeddings=CONTEXT), folder)


class RealServer:
    """`headrace serve MODEL …` on a free port. Use as a context manager; the process is gone afterwards."""

    def __init__(self, model: Path | str, *flags: str, name: str = "tiny") -> None:
        self.log = tempfile.TemporaryFile("w+")  # noqa: SIM115  # closed in __exit__
        self.process = subprocess.Popen(
            [*COMMAND, str(model), "--port", "0", "--served-model-name", name, *flags],
            stdout=subprocess.PIPE,
            stderr=self.log,
            text=True,
            env=os.environ | {"PYTHONUNBUFFERED": "1"},
            preexec_fn=_end_with_parent,
        )
        self.banner = ""
        self.url = ""
        self.client = httpx.Client(timeout=60)

    def __enter__(self) -> RealServer:
        try:
            self._wait()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.client.close()
        if self.process.poll() is None:
            self.process.terminate()
            try:
                self.process.wait(15)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()
        if self.process.stdout is not None:
            self.process.stdout.close()
        self.log.close()

    def _wait(self) -> None:
        alarm = threading.Timer(START_S, self.process.kill)
        alarm.start()
        try:
            for line in self.process.stdout or ():
                self.banner += line
                if found := re.search(r"is served at (\S+)", line):
                    self.url = found[1]
                if line.strip().startswith(("API documentation", "curl -s --unix-socket")):
                    break
        finally:
            alarm.cancel()
        if not self.url:
            raise RuntimeError(f"the server did not start:\n{self.banner}{self.errors()}")

    def errors(self) -> str:
        """What it has written to standard error."""
        self.log.flush()
        self.log.seek(0)
        return self.log.read()

    @property
    def engine_pid(self) -> int:
        """The child's process id."""
        children = Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children").read_text().split()
        return int(children[0])

    def post(self, path: str, body: Any) -> httpx.Response:
        return self.client.post(self.url + path, json=body)

    def get(self, path: str) -> httpx.Response:
        return self.client.get(self.url + path)

    def complete(self, **body: Any) -> httpx.Response:
        """POST /v1/completions, greedy and short unless told otherwise."""
        return self.post("/v1/completions", {"model": "tiny", "max_tokens": 4, "temperature": 0} | body)

    def chat(self, **body: Any) -> httpx.Response:
        """POST /v1/chat/completions, greedy and short unless told otherwise."""
        messages = [{"role": "user", "content": "Hi"}]
        default = {"model": "tiny", "messages": messages, "max_tokens": 4, "temperature": 0}
        return self.post("/v1/chat/completions", default | body)

    def stream(self, path: str, body: Any) -> Iterator[Any]:
        """The events of a stream before `[DONE]`, parsed; raises if it ends without."""
        with self.client.stream("POST", self.url + path, json=body | {"stream": True}) as response:
            if response.status_code != 200:
                raise RuntimeError(response.read().decode())
            for line in response.iter_lines():
                if line == "data: [DONE]":
                    return
                if line.startswith("data: "):
                    yield json.loads(line[6:])
        raise RuntimeError("the stream ended without [DONE]")

    def metric(self, name: str) -> float:
        """The sum of a metric's samples."""
        lines = self.get("/metrics").text.splitlines()
        return sum(float(line.split()[-1]) for line in lines if re.match(re.escape(name) + r"[ {]", line))

    @property
    def num_free_blocks(self) -> int:
        return int(self.get("/v1/engine/memory").json()["num_free_kv_blocks"])

    @property
    def rss_bytes(self) -> int:
        """Resident memory of server and engine together."""
        page = os.sysconf("SC_PAGE_SIZE")
        return sum(
            int(Path(f"/proc/{p}/statm").read_text().split()[1]) * page for p in (self.process.pid, self.engine_pid)
        )

    def signal(self, number: signal.Signals) -> None:
        self.process.send_signal(number)
