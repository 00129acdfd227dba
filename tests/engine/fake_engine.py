"""The engine process with a core that counts instead of running a model; run as `python -m tests.engine.fake_engine`.

The configured model name chooses how it starts; the first prompt token chooses what goes wrong with a request.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys
import time

from headrace.config.engine import EngineConfig
from headrace.core.errors import CapacityError
from headrace.core.outputs import TokenDelta
from headrace.core.request import EngineRequest
from headrace.core.stats import EngineInfo, EngineStats
from headrace.engine.worker import main

FAIL_ADD, FAIL_STEP, DIE, SEND_GARBAGE, HANG = 901, 902, 903, 904, 905


def engine_info(config: EngineConfig) -> EngineInfo:
    return EngineInfo(
        model=config.model,
        architecture="counter",
        max_model_len=1 << 24,
        max_num_seqs=config.max_num_seqs,
        max_num_batched_tokens=config.max_num_batched_tokens,
        vocab_size=1000,
        block_size=16,
        num_blocks=8,
        kv_tokens=128,
        isa="none",
        num_threads=1,
        num_threads_source="default",
        budget_bytes=1,
        budget_source="default",
        structure_id="0",
        numerics_id="0",
        revision="",
        startup_s={"load": 0.0},
        memory=[],
    )


class CountingCore:
    """Each step adds one token to every request: the length of its prompt, then one more each time."""

    def __init__(self, config: EngineConfig) -> None:
        if config.model == "too-big":
            raise CapacityError("needs 3 GB, has 2 GB", param="max_model_len")
        if config.model == "broken":
            raise ZeroDivisionError("a fault of the code")
        if config.model == "slow":
            time.sleep(60)
        if config.model == "slow-with-gil":
            ctypes.PyDLL(None).sleep(60)
        self.info = engine_info(config)
        self._running: dict[str, EngineRequest] = {}
        self._made: dict[str, int] = {}
        self._num_steps = 0

    @property
    def has_work(self) -> bool:
        return bool(self._running)

    def add(self, request: EngineRequest) -> None:
        if request.prompt_token_ids[0] == FAIL_ADD:
            raise ValueError("this request is refused")
        self._running[request.request_id] = request
        self._made[request.request_id] = 0

    def abort(self, request_id: str) -> None:
        self._running.pop(request_id, None)

    def step(self) -> list[TokenDelta]:
        self._num_steps += 1
        time.sleep(0.001)
        deltas = []
        for request_id, request in list(self._running.items()):
            self._go_wrong(request.prompt_token_ids[0])
            made = self._made[request_id]
            self._made[request_id] += 1
            finished = made + 1 >= request.max_tokens
            if finished:
                del self._running[request_id]
            deltas.append(
                TokenDelta(
                    request_id=request_id,
                    token_ids=[len(request.prompt_token_ids) + made],
                    finish_reason="length" if finished else None,
                )
            )
        return deltas

    def _go_wrong(self, token_id: int) -> None:
        if token_id == FAIL_STEP:
            raise RuntimeError("the step failed")
        if token_id == DIE:
            os.kill(os.getpid(), signal.SIGKILL)
        if token_id == HANG:
            time.sleep(60)
        if token_id == SEND_GARBAGE:
            os.write(int(sys.argv[sys.argv.index("--fd") + 1]), b"\xff" * 64)

    def stats(self) -> EngineStats:
        return EngineStats(
            num_running=len(self._running),
            num_waiting=0,
            num_blocks=8,
            num_free_blocks=8,
            block_size=16,
            num_steps=self._num_steps,
            num_preemptions=0,
            prefix_cache_queries=0,
            prefix_cache_hits=0,
            prompt_tokens=0,
            generation_tokens=sum(self._made.values()),
        )

    def close(self) -> None:
        self._running.clear()


if __name__ == "__main__":
    sys.exit(main(CountingCore))
