"""llama.cpp and ik_llama.cpp through their own llama-server."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

from benchmarks.servers import NotThereError, Purpose, Server
from benchmarks.workload import BATCH_SIZE, LONG_CONTEXT

_CELLS_EACH = 1280
"""Room for the longest request of the rates."""


class LlamaCpp(Server):
    """llama-server from a build folder; for rates it gets a KV cache of its own for each of `num_slots` requests."""

    def __init__(
        self,
        name: str,
        build: Path,
        model: Path,
        log: Path,
        num_threads: int,
        purpose: Purpose,
        *,
        options: tuple[str, ...] = (),
        num_slots: int = BATCH_SIZE,
    ) -> None:
        super().__init__(name, model, log, num_threads, purpose)
        self._program = build / "bin" / "llama-server"
        if not os.access(self._program, os.X_OK):
            raise NotThereError(f"{self._program} is not there")
        self._options, self._num_slots = options, num_slots

    def command(self, port: int) -> list[str]:
        threads = str(self.num_threads)
        slots = self._num_slots if self.purpose is Purpose.RATES else 1
        cells = {Purpose.RATES: slots * _CELLS_EACH, Purpose.SINGLE: 2048, Purpose.LONG: LONG_CONTEXT}[self.purpose]
        # Not -kvu: with one unified buffer every slot would attend over all slots' cells.
        options = ["-t", threads, "-tb", threads, "-c", str(cells), "-np", str(slots), *self._options]
        return [str(self._program), "-m", str(self.model), "--host", "127.0.0.1", "--port", str(port), *options]

    def folder(self) -> Path:
        # ik_llama.cpp leaves a llama.log where it runs.
        return self._log.parent

    def version(self) -> str:
        done = subprocess.run([self._program, "--version"], capture_output=True, text=True, check=False)
        return ((done.stderr + done.stdout).strip().splitlines() or ["?"])[0]

    def ask(self, token_ids: list[int], num_tokens: int, *, reuse: bool = False) -> None:
        body = {"prompt": token_ids, "n_predict": num_tokens, "temperature": 0, "top_k": 1, "ignore_eos": True}
        answer = self.post("/completion", body | {"cache_prompt": reuse, "stream": False})
        if answer["tokens_predicted"] != num_tokens:
            raise RuntimeError(f"asked for {num_tokens} tokens, got {answer['tokens_predicted']}")
