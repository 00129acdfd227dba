"""The workload, the same for every engine. Changing a number here makes all earlier results incomparable.

decode       (255 tokens) / (t[128 prompt + 256 new] - t[128 prompt + 1 new]), one stream
prefill      1024 / t[1024 prompt + 1 new], one stream; the time itself is the time to the first token (TTFT)
batch        32 requests at once, 128 prompt + 128 new each: 32 * 128 / time, prompts included
shared       32 requests at once, 512 shared + 16 own prompt + 64 new each, nothing cached before: 32 * 64 / time
cold start   seconds from starting the process to the first token of a 16-token prompt
memory       after one exchange of 1,000 tokens on a fresh server: summed PSS and RSS of its processes, and RSS's peak
long         the same after a prompt of 8,000 tokens, in an engine with room for one sequence of 8,192
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pydoc_data.topics import topics
from typing import TypeVar

from benchmarks.processes import Memory, PeakMemory, foreign_share
from benchmarks.servers import Server

DECODE_PROMPT, DECODE_NEW = 128, 256
PREFILL_PROMPT = 1024
BATCH_SIZE, BATCH_PROMPT, BATCH_NEW = 32, 128, 128
SHARED_PROMPT, SHARED_OWN, SHARED_NEW = 512, 16, 64
COLD_PROMPT = 16
CHAT_PROMPT, CHAT_NEW = 700, 300
LONG_CONTEXT, LONG_PROMPT, LONG_NEW = 8192, 8000, 8

Item = TypeVar("Item")


class Prompts:
    """Slices of English text that never overlap, so that no cache helps by accident."""

    def __init__(self, token_ids: list[int]) -> None:
        self._ids, self._at = token_ids, 0

    def take(self, count: int) -> list[int]:
        """The next `count` ids. Raises ValueError when the text is used up."""
        if self._at + count > len(self._ids):
            raise ValueError("the text is used up; ask for fewer repeats")
        self._at += count
        return self._ids[self._at - count : self._at]


def english_text() -> str:
    """About 150,000 tokens that every CPython carries: the help texts of `pydoc`."""
    return "\n\n".join(topics[name] for name in sorted(topics))


@dataclass(frozen=True)
class Sample:
    """One timed sample; `foreign` is the share of one core that other processes took meanwhile."""

    value: float
    foreign: float


def decode(server: Server, prompts: Prompts) -> Sample:
    """Tokens per second of one stream."""

    def run() -> float:
        one_s = min(_seconds(lambda: server.ask(prompts.take(DECODE_PROMPT), 1)) for _ in range(2))
        all_s = _seconds(lambda: server.ask(prompts.take(DECODE_PROMPT), DECODE_NEW))
        return (DECODE_NEW - 1) / (all_s - one_s)

    return _sample(server, run)


def prefill(server: Server, prompts: Prompts) -> Sample:
    """Prompt tokens per second of one stream."""
    return _sample(server, lambda: PREFILL_PROMPT / _seconds(lambda: server.ask(prompts.take(PREFILL_PROMPT), 1)))


def batch(server: Server, prompts: Prompts) -> Sample:
    """Generated tokens per second of 32 requests that arrive together."""
    asked = [prompts.take(BATCH_PROMPT) for _ in range(BATCH_SIZE)]
    return _sample(server, lambda: BATCH_SIZE * BATCH_NEW / _seconds(lambda: server.ask_all(asked, BATCH_NEW)))


def shared(server: Server, prompts: Prompts) -> Sample:
    """Generated tokens per second of 32 requests that arrive together and begin alike."""
    prefix = prompts.take(SHARED_PROMPT)
    asked = [prefix + prompts.take(SHARED_OWN) for _ in range(BATCH_SIZE)]

    def run() -> float:
        return BATCH_SIZE * SHARED_NEW / _seconds(lambda: server.ask_all(asked, SHARED_NEW, reuse=True))

    return _sample(server, run)


def cold_start(server: Server, prompts: Prompts) -> Sample:
    """Seconds from nothing to the first token; the server is stopped again."""

    def run() -> float:
        begin_s = time.perf_counter()
        server.start()
        server.wait_until_ready()
        server.ask(prompts.take(COLD_PROMPT), 1)
        return time.perf_counter() - begin_s

    try:
        return _sample(server, run)
    finally:
        server.stop()


def memory(server: Server, prompts: Prompts) -> Memory:
    """Of a fresh server after a chat of 1,000 tokens; the server is stopped again."""
    return _memory_after(server, prompts.take(CHAT_PROMPT), CHAT_NEW)


def long_memory(server: Server, prompts: Prompts) -> Memory:
    """Of a fresh server after a prompt that fills an 8k context; the server is stopped again."""
    return _memory_after(server, prompts.take(LONG_PROMPT), LONG_NEW)


def _memory_after(server: Server, prompt: list[int], num_tokens: int) -> Memory:
    server.start()
    try:
        with PeakMemory(server.pid) as peak:
            server.wait_until_ready()
            server.ask(prompt, num_tokens)
            return peak.now()
    finally:
        server.stop()


def warm_up(server: Server, prompts: Prompts) -> None:
    """First requests cost more: pages are touched, threads are made."""
    server.ask(prompts.take(DECODE_PROMPT), 8)
    server.ask(prompts.take(PREFILL_PROMPT), 1)


RATES: dict[str, Callable[[Server, Prompts], Sample]] = {
    "decode": decode,
    "prefill": prefill,
    "batch": batch,
    "shared": shared,
}
MEMORY: dict[str, Callable[[Server, Prompts], Memory]] = {"memory": memory, "long": long_memory}


QUIET_CORES = 0.1
"""What other processes may take while a sample is worth keeping without another try."""


def quietest(take: Callable[[], Sample], tries: int) -> Sample:
    """Samples until others leave the machine alone, at most `tries`; the one that they disturbed least."""
    best = take()
    for _ in range(tries - 1):
        if best.foreign <= QUIET_CORES:
            break
        best = min(best, take(), key=lambda sample: sample.foreign)
    return best


def _sample(server: Server, run: Callable[[], float]) -> Sample:
    value: list[float] = []
    foreign = foreign_share(lambda: value.append(run()), lambda: server.pid)
    return Sample(value[0], foreign)


def _seconds(run: Callable[[], object]) -> float:
    begin_s = time.perf_counter()
    run()
    return time.perf_counter() - begin_s


def interleaved(items: Sequence[Item], repeats: int) -> Iterator[Item]:
    """A B A B …: whatever else the machine does meanwhile hits all alike."""
    for _ in range(repeats):
        yield from items
