"""OpenVINO GenAI's continuous batching pipeline, in a process of its own environment, asked over its pipes."""

from __future__ import annotations

import json
import os
import select
import subprocess
import time
from pathlib import Path
from typing import Any

from benchmarks.servers import ASK_TIMEOUT_S, START_TIMEOUT_S, NotThereError, Purpose, Server

_WORKER = Path(__file__).with_name("genai_worker.py")


class OpenVino(Server):
    """`python` is the interpreter that has openvino-genai installed."""

    def __init__(self, python: Path, model: Path, log: Path, num_threads: int, purpose: Purpose) -> None:
        super().__init__("OpenVINO", model, log, num_threads, purpose)
        packages = list(python.parent.parent.glob("lib/python*/site-packages/openvino_genai-*.dist-info"))
        if not os.access(python, os.X_OK) or not packages:
            raise NotThereError(f"openvino-genai is not installed beside {python}")
        self._python = python
        self._unread = b""
        self._version = packages[0].name.removeprefix("openvino_genai-").removesuffix(".dist-info")

    def command(self, port: int) -> list[str]:  # noqa: ARG002 (it listens nowhere)
        return [str(self._python), str(_WORKER), str(self.model), str(self.num_threads)]

    def version(self) -> str:
        return self._version

    def start(self) -> None:
        self._unread = b""
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(self.command(0), stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log)

    def wait_until_ready(self) -> None:
        self._line(START_TIMEOUT_S)

    def stop(self) -> None:
        process = self._process
        super().stop()
        if process is not None:
            for pipe in (process.stdin, process.stdout):
                if pipe is not None:
                    pipe.close()

    def ask(self, token_ids: list[int], num_tokens: int, *, reuse: bool = False) -> None:
        self.ask_all([token_ids], num_tokens, reuse=reuse)

    def ask_all(self, prompts: list[list[int]], num_tokens: int, *, reuse: bool = False) -> None:  # noqa: ARG002
        if self._process is None or self._process.stdin is None:
            raise RuntimeError(f"{self.name} is not running")
        request = json.dumps({"prompts": prompts, "num_tokens": num_tokens})
        try:
            self._process.stdin.write(request.encode() + b"\n")
            self._process.stdin.flush()
        except OSError as error:
            raise RuntimeError(f"{self.name} has ended; see {self._log}") from error
        lengths = self._line(ASK_TIMEOUT_S)["lengths"]
        if lengths != [num_tokens] * len(prompts):
            raise RuntimeError(f"asked for {num_tokens} tokens each, got {lengths}")

    def _line(self, timeout_s: float) -> Any:
        """The worker's next answer. The libraries below it print too: their lines are passed over."""
        process, deadline_s = self._process, time.monotonic() + timeout_s
        if process is None or process.stdout is None:
            raise RuntimeError(f"{self.name} is not running")
        pipe = process.stdout.fileno()
        while True:
            line, newline, rest = self._unread.partition(b"\n")
            if newline:
                self._unread = rest
                if line.startswith(b'{"peer":'):
                    return json.loads(line)
                continue
            # Not readline: what it buffers beyond a line, select would not see.
            if not select.select([pipe], [], [], max(0.0, deadline_s - time.monotonic()))[0]:
                raise RuntimeError(f"{self.name} did not answer within {timeout_s:g} s")
            data = os.read(pipe, 1 << 16)
            if not data:
                raise RuntimeError(f"{self.name} has ended; see {self._log}")
            self._unread += data
