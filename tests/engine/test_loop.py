"""The overlapped loop against the plain one: same tokens, same logprobs, nothing lost, faults kept apart."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

from headrace import _native
from headrace.config.engine import EngineConfig
from headrace.core.outputs import TokenDelta
from headrace.core.request import EngineRequest
from headrace.engine.core import EngineCore
from headrace.runner import step_header

Make = Callable[..., Path]
MakeCore = Callable[..., EngineCore]


@pytest.fixture
def make_core(tiny_gguf: Make) -> Iterator[MakeCore]:
    cores: list[EngineCore] = []

    def make(*, overlap: bool, **options: object) -> EngineCore:
        values = {"model": str(tiny_gguf("llama", "Q4_1")), "max_num_seqs": 6, "num_threads": 2, **options}
        cores.append(EngineCore(EngineConfig(overlap=overlap, **values)))  # type: ignore[arg-type]
        return cores[-1]

    yield make
    for core in cores:
        while core.has_work:
            core.step()
        core.check_integrity()
        stats = core.stats()
        assert stats.num_free_blocks == stats.num_blocks
        core.close()


def traffic(count: int, seed: int) -> list[tuple[int, EngineRequest]]:
    """(step of arrival, request): long and short ones, some with stop ids that will be met, priorities mixed."""
    rng = random.Random(seed)
    shared = [rng.randrange(3, 290) for _ in range(48)]
    out = []
    for i in range(count):
        prompt = shared[: rng.choice([0, 16, 33, 48])] + [rng.randrange(3, 290) for _ in range(rng.randrange(1, 60))]
        request = EngineRequest(
            request_id=f"r{i}",
            prompt_token_ids=prompt,
            max_tokens=rng.choice([1, 2, 7, 25]),
            temperature=rng.choice([0.0, 1.0]),
            seed=i,
            stop_token_ids=rng.sample(range(300), rng.choice([0, 150])),
            logprobs=rng.choice([None, 2]),
            prompt_logprobs=rng.choice([None, None, 1]),
            priority=rng.randrange(3),
        )
        out.append((rng.randrange(30), request))
    return sorted(out, key=lambda pair: pair[0])


def run(core: EngineCore, arrivals: list[tuple[int, EngineRequest]]) -> dict[str, list[object]]:
    """Request → everything its deltas carried, put together."""
    seen: dict[str, list[object]] = {r.request_id: [[], [], [], None, None] for _, r in arrivals}
    waiting, step = list(arrivals), 0
    while waiting or core.has_work:
        while waiting and waiting[0][0] <= step:
            core.add(waiting.pop(0)[1])
        for delta in core.step():
            add(seen[delta.request_id], delta)
        step += 1
    return seen


def add(seen: list[object], delta: TokenDelta) -> None:
    for i, values in enumerate((delta.token_ids, delta.logprobs, delta.prompt_logprobs)):
        seen[i] += values  # type: ignore[operator]
    if delta.finish_reason is not None:
        assert seen[3] is None, "a request ended twice"
        seen[3:] = [delta.finish_reason, delta.stop_reason]


@pytest.mark.parametrize("policy", ["fcfs", "priority"])
@pytest.mark.parametrize("seed", range(6))
def test_both_loops_give_the_same_tokens_logprobs_and_ends(seed: int, policy: str, make_core: MakeCore) -> None:
    work = traffic(24, seed)
    options = {"scheduling_policy": policy, "max_num_batched_tokens": 40, "max_model_len": 160}
    plain, overlapped = (run(make_core(overlap=o, **options), work) for o in (False, True))
    assert overlapped == plain
    assert {end[3] for end in plain.values()} == {"stop", "length"}


def test_both_loops_agree_when_blocks_run_out(make_core: MakeCore) -> None:
    probe = make_core(overlap=False)
    kv_bytes = 16 * probe.runner.memory.specs[0].bytes_per_block
    options = {"kv_cache_memory_bytes": kv_bytes, "max_model_len": 160, "max_num_batched_tokens": 64}
    work = traffic(24, 11)
    plain, overlapped = (make_core(overlap=o, **options) for o in (False, True))
    assert run(overlapped, work) == run(plain, work)
    assert overlapped.stats().num_preemptions > 0


def test_an_abort_while_its_step_is_in_flight_drops_the_late_token_and_frees_once(make_core: MakeCore) -> None:
    rng = random.Random(4)
    core = make_core(overlap=True)
    for _ in range(30):
        ids = [f"a{i}" for i in range(4)]
        for name in ids:
            core.add(EngineRequest(request_id=name, prompt_token_ids=[5, 6, 7] * 9, max_tokens=40))
        for _ in range(rng.randrange(1, 6)):
            core.step()
        gone = rng.sample(ids, 2)
        for name in gone:
            core.abort(name)
        late = [d for _ in range(3) for d in core.step()]
        assert not {d.request_id for d in late} & set(gone)
        for name in ids:
            core.abort(name)
        while core.has_work:
            assert core.step() == []
        core.check_integrity()
        assert core.stats().num_free_blocks == core.stats().num_blocks


def test_two_steps_are_in_flight_while_there_is_work(make_core: MakeCore) -> None:
    core = make_core(overlap=True)
    core.add(EngineRequest(request_id="x", prompt_token_ids=[5] * 20, max_tokens=8, temperature=0.0))
    assert core.step() == []
    delivered = 0
    while delivered < 7:
        delivered += sum(len(d.token_ids) for d in core.step())
        assert core.runner.num_submitted >= 1 or delivered == 8
    while core.has_work:
        core.step()
    assert core.runner.num_submitted == 0


def test_a_failed_step_fails_those_behind_it_and_the_queue_goes_on_afterwards(make_core: MakeCore) -> None:
    core = make_core(overlap=True)
    queue = _native.StepQueue(core.runner.executor)  # type: ignore[arg-type]
    bad = step_header.encode_header(step_header.StepHeader(0, (step_header.Entry(99, 0, 1),)))
    good = step_header.encode_header(step_header.StepHeader(1))
    queue.submit(bad)
    queue.submit(good)
    for _ in range(2):
        with pytest.raises(ValueError, match="row"):
            queue.collect()
    queue.submit(good)
    assert queue.collect()["token_ids"].shape == (0,)
    with pytest.raises(RuntimeError, match="no step is pending"):
        queue.collect()
    queue.close()
    queue.close()
    with pytest.raises(RuntimeError, match="closed"):
        queue.submit(np.array(good))
