"""One request's logits, token by token, as hashes; and ways of running it that must not change a bit of them."""

from __future__ import annotations

import hashlib
import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import numpy.typing as npt

from headrace.config.engine import EngineConfig
from headrace.core.request import EngineRequest
from headrace.core.schedule import Schedule
from headrace.engine.core import EngineCore

BLOCK = 16
NUM_NEW_TOKENS = 10


@dataclass(frozen=True)
class Trace:
    """What a request got: token ids, and the hash of the raw logits bytes each was sampled from."""

    token_ids: tuple[int, ...]
    logits_hashes: tuple[str, ...]


@dataclass
class Evidence:
    """What really happened while requests ran, so that a test can demand that its path was taken."""

    num_preemptions: int = 0
    prefix_cache_hits: int = 0
    chunk_sizes: set[int] = field(default_factory=set)
    batch_sizes: set[int] = field(default_factory=set)
    mixed_steps: int = 0
    """Steps that held a prefill chunk and a decode at once."""


class Bench:
    """An engine whose every sampled row is hashed. Checks that nothing is left allocated when it closes."""

    def __init__(self, model: Path, **options: object) -> None:
        values = {"model": str(model), "num_threads": 1, "max_num_seqs": 8, **options}
        self.core = EngineCore(EngineConfig(**values))  # type: ignore[arg-type]
        self.core.runner.on_step = self._on_step
        self.evidence = Evidence()
        self._hashes: dict[str, list[str]] = {}

    def _on_step(self, schedule: Schedule, logits: npt.NDArray[np.float32]) -> None:
        row = 0
        sizes = [e.num_tokens for e in schedule.entries]
        self.evidence.chunk_sizes.update(sizes)
        self.evidence.batch_sizes.add(len(sizes))
        self.evidence.mixed_steps += 1 in sizes and max(sizes) > 1
        for entry in schedule.entries:
            row += entry.num_prompt_logprobs
            if entry.samples:
                digest = hashlib.blake2b(logits[row].tobytes(), digest_size=8).hexdigest()
                self._hashes.setdefault(entry.request_id, []).append(digest)
                row += 1

    def run(self, requests: Sequence[EngineRequest], *, arrivals: Sequence[int] | None = None) -> dict[str, Trace]:
        """Run all to the end; arrivals: the step before which each is added."""
        when = list(arrivals or [0] * len(requests))
        tokens: dict[str, list[int]] = {r.request_id: [] for r in requests}
        self._hashes = {}
        step, left = 0, set(range(len(requests)))
        while left or self.core.has_work:
            for i in sorted(i for i in left if when[i] <= step):
                self.core.add(requests[i])
                left.discard(i)
            for delta in self.core.step():
                tokens[delta.request_id] += delta.token_ids
            step += 1
        self.core.check_integrity()
        stats = self.core.stats()
        self.evidence.num_preemptions = stats.num_preemptions
        self.evidence.prefix_cache_hits = stats.prefix_cache_hits
        return {name: Trace(tuple(ids), tuple(self._hashes[name])) for name, ids in tokens.items()}

    def close(self) -> None:
        stats = self.core.stats()
        if stats.num_free_blocks != stats.num_blocks:
            raise RuntimeError(
                f"{stats.num_blocks - stats.num_free_blocks} blocks are not free after all requests ended"
            )
        self.core.close()


def prompts(count: int, seed: int = 0) -> list[list[int]]:
    """Prompts around block boundaries (kB - 1, kB, kB + 1), half of them with a common beginning."""
    rng = random.Random(seed)
    shared = [rng.randrange(3, 290) for _ in range(4 * BLOCK + 2)]
    out = []
    for i in range(count):
        length = (1 + i % 4) * BLOCK + (-1, 0, 1)[i % 3]
        fresh = [rng.randrange(3, 290) for _ in range(length)]
        keep = rng.randrange(length) if i % 2 else 0
        out.append(shared[:keep] + fresh[keep:])
    return out


def requests(count: int, *, prefix: str = "", seed: int = 0) -> list[EngineRequest]:
    """Half greedy, half sampled; each with its own seed."""
    return [
        EngineRequest(
            request_id=f"{prefix}{i}",
            prompt_token_ids=prompt,
            max_tokens=NUM_NEW_TOKENS,
            temperature=0.0 if i % 2 else 0.9,
            seed=1000 + i,
        )
        for i, prompt in enumerate(prompts(count, seed))
    ]
