"""EngineCore on a tiny model: invariance over the whole engine, cache, preemption, aborts, faults."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from headrace import _native
from headrace.config.engine import EngineConfig
from headrace.core.errors import CapacityError, InvalidRequestError
from headrace.core.outputs import TokenLogprobs
from headrace.core.request import EngineRequest
from headrace.engine.core import EngineCore

Make = Callable[..., Path]
Result = tuple[list[int], list[TokenLogprobs]]
BLOCK = 16


@pytest.fixture
def make_core(tiny_gguf: Make) -> Iterator[Callable[..., EngineCore]]:
    """Cores that are checked and closed at the end: nothing may be left allocated."""
    cores: list[EngineCore] = []

    def make(**options: object) -> EngineCore:
        values = {"model": str(tiny_gguf("llama", "Q4_1")), "max_num_seqs": 8, "num_threads": 1, **options}
        cores.append(EngineCore(EngineConfig(**values)))  # type: ignore[arg-type]
        return cores[-1]

    yield make
    for core in cores:
        core.check_integrity()
        stats = core.stats()
        assert (stats.num_running, stats.num_waiting) == (0, 0)
        assert stats.num_free_blocks == stats.num_blocks
        core.close()


def request(name: str, prompt: list[int], **changes: object) -> EngineRequest:
    values = {"max_tokens": 12, "temperature": 0.8, "seed": 11, "logprobs": 3, **changes}
    return EngineRequest(request_id=name, prompt_token_ids=prompt, **values)  # type: ignore[arg-type]


def run(core: EngineCore, requests: list[EngineRequest], *, arrivals: list[int] | None = None) -> dict[str, Result]:
    """Run to the end; arrivals: the step before which each request is added."""
    waiting = sorted(zip(arrivals or [0] * len(requests), range(len(requests)), strict=True))
    results: dict[str, Result] = {r.request_id: ([], []) for r in requests}
    for step in itertools.count():
        while waiting and waiting[0][0] <= step:
            core.add(requests[waiting.pop(0)[1]])
        for delta in core.step():
            results[delta.request_id][0].extend(delta.token_ids)
            results[delta.request_id][1].extend(delta.logprobs)
        core.check_integrity()
        if not waiting and not core.has_work:
            return results


def prompts(count: int, seed: int = 3) -> list[list[int]]:
    rng = random.Random(seed)
    shared = [rng.randrange(3, 290) for _ in range(40)]
    return [
        shared[: rng.randrange(41)] + [rng.randrange(3, 290) for _ in range(rng.randrange(1, 40))] for _ in range(count)
    ]


def batch(count: int = 12) -> list[EngineRequest]:
    return [request(f"r{i}", p, seed=100 + i) for i, p in enumerate(prompts(count))]


def alone(make_core: Callable[..., EngineCore], requests: list[EngineRequest], **options: object) -> dict[str, Result]:
    core = make_core(enable_prefix_caching=False, **options)
    return {r.request_id: run(core, [r])[r.request_id] for r in requests}


@pytest.mark.parametrize("isa", _native.available_isas())
def test_a_crowd_gets_the_same_tokens_and_logprobs_as_one_request_alone(
    isa: str, make_core: Callable[..., EngineCore]
) -> None:
    requests = batch()
    crowd = run(make_core(isa=isa, max_num_batched_tokens=64), requests, arrivals=[i // 2 for i in range(12)])
    assert crowd == alone(make_core, requests, isa=isa)


@pytest.mark.parametrize("chunk", [1, 7, 16, 100])
def test_the_size_of_prefill_chunks_changes_nothing(chunk: int, make_core: Callable[..., EngineCore]) -> None:
    requests = batch(6)
    core = make_core(max_num_batched_tokens=chunk)
    assert run(core, requests) == alone(make_core, requests)
    assert chunk > 7 or core.stats().num_steps > 12


def test_a_warm_cache_changes_nothing_and_is_really_hit(make_core: Callable[..., EngineCore]) -> None:
    requests = batch()
    core = make_core()
    cold = run(core, requests)
    hits = core.stats().prefix_cache_hits
    assert run(core, requests) == cold == alone(make_core, requests)
    assert core.stats().prefix_cache_hits > hits


@pytest.mark.parametrize("length", [k * BLOCK + d for k in (1, 2, 3, 4) for d in (-1, 0, 1)])
def test_prompts_around_block_boundaries_hit_whole_blocks_and_leave_a_token(
    length: int, make_core: Callable[..., EngineCore]
) -> None:
    core, prompt = make_core(), [3 + i % 250 for i in range(length)]
    first = run(core, [request("a", prompt)])["a"]
    core.add(request("b", prompt))
    deltas = []
    while core.has_work:
        deltas += core.step()
    cached = deltas[0].num_cached_tokens
    assert cached == (length - 1) // BLOCK * BLOCK
    assert [t for d in deltas for t in d.token_ids] == first[0]
    assert [p for d in deltas for p in d.logprobs] == first[1]


def test_evictions_and_preemptions_change_nothing_and_really_happen(make_core: Callable[..., EngineCore]) -> None:
    """32 blocks for 20 prompts that share prefixes, asked for in random order, over and over (field case F39)."""
    config_bytes = 33 * BLOCK * bytes_per_token(make_core)
    core = make_core(kv_cache_memory_bytes=config_bytes, max_model_len=256, max_num_batched_tokens=48)
    assert core.stats().num_blocks == 32
    requests = [request(f"p{i}", p, max_tokens=60, seed=i) for i, p in enumerate(prompts(20, seed=5))]
    expected = alone(make_core, requests)
    rng = random.Random(1)
    order = [rng.randrange(20) for _ in range(120)]
    again = [request(f"{n}:{i}", requests[i].prompt_token_ids, max_tokens=60, seed=i) for n, i in enumerate(order)]
    results = run(core, again, arrivals=[n // 3 for n in range(120)])
    for n, i in enumerate(order):
        assert results[f"{n}:{i}"] == expected[f"p{i}"]
    stats = core.stats()
    assert stats.num_preemptions > 0
    assert stats.prefix_cache_hits > 0


def bytes_per_token(make_core: Callable[..., EngineCore]) -> int:
    return make_core().runner.memory.specs[0].bytes_per_token


@pytest.mark.parametrize("num_threads", [2, 3, 5])
def test_the_number_of_threads_changes_nothing(num_threads: int, make_core: Callable[..., EngineCore]) -> None:
    requests = batch(6)
    assert run(make_core(num_threads=num_threads), requests) == alone(make_core, requests)


def test_an_abort_in_any_state_frees_everything(make_core: Callable[..., EngineCore]) -> None:
    core = make_core(max_num_seqs=2, max_num_batched_tokens=16)
    for steps in range(8):
        for i in range(4):
            core.add(request(f"x{i}", prompts(4)[i], max_tokens=50))
        for _ in range(steps):
            core.step()
        for i in range(4):
            core.abort(f"x{i}")
        while core.has_work:
            core.step()
        core.check_integrity()
        assert core.stats().num_free_blocks == core.stats().num_blocks


def test_prompt_logprobs_are_those_of_scoring_the_prompt_token_by_token(make_core: Callable[..., EngineCore]) -> None:
    core, prompt = make_core(max_num_batched_tokens=16), prompts(1)[0]
    core.add(request("a", prompt, prompt_logprobs=2, max_tokens=1))
    deltas = []
    while core.has_work:
        deltas += core.step()
    scored = [p for d in deltas for p in d.prompt_logprobs]
    assert [p.token_id for p in scored] == prompt[1:]
    for at in range(1, len(prompt), 7):
        single = run(core, [request(f"at{at}", prompt[:at], temperature=0.0, max_tokens=1, logprobs=2)])[f"at{at}"][1][
            0
        ]
        assert scored[at - 1].top == single.top


def test_a_request_that_could_never_run_is_refused_and_nothing_is_kept(make_core: Callable[..., EngineCore]) -> None:
    core = make_core()
    for prompt, param in (([], "prompt"), ([-1], "prompt"), ([10**6], "prompt")):
        with pytest.raises(InvalidRequestError) as refusal:
            core.add(request("bad", prompt))
        assert refusal.value.param == param
    with pytest.raises(InvalidRequestError, match="token ids must be from 0"):
        core.add(request("bad", [5], logit_bias={10**6: 1.0}))
    assert not core.has_work


def test_logit_bias_decides_the_token_and_leaves_raw_logprobs_alone(make_core: Callable[..., EngineCore]) -> None:
    core, prompt = make_core(), prompts(1)[0]
    forced = run(core, [request("f", prompt, temperature=0.0, max_tokens=3, logit_bias={77: 100.0})])["f"]
    plain = run(core, [request("p", prompt, temperature=0.0, max_tokens=1)])["p"]
    assert forced[0] == [77, 77, 77]
    assert forced[1][0].top == plain[1][0].top


def test_a_context_that_does_not_fit_is_refused_with_a_length_that_does(tiny_gguf: Make) -> None:
    model = str(tiny_gguf("llama", "Q4_1"))
    probe = EngineCore(EngineConfig(model=model, num_threads=1))
    memory = probe.runner.memory
    fixed = memory.total_bytes - sum(memory.kv_bytes)
    probe.close()
    budget = fixed + 6 * memory.specs[0].bytes_per_block
    with pytest.raises(CapacityError, match=r"--max-model-len (\d+) fits") as refusal:
        EngineCore(EngineConfig(model=model, num_threads=1, memory_budget_bytes=budget))
    text = refusal.value.message
    hinted = int(text.split("--max-model-len ")[1].split()[0])
    assert hinted > 0
    assert "weights" in text
    core = EngineCore(EngineConfig(model=model, num_threads=1, memory_budget_bytes=budget, max_model_len=hinted))
    assert core.info.max_model_len == hinted
    core.close()


def test_memory_lines_add_up_to_the_budgeted_total(make_core: Callable[..., EngineCore]) -> None:
    core = make_core()
    lines = core.runner.memory_lines()
    assert sum(line.reserved_bytes for line in lines) == core.runner.memory.total_bytes
    assert core.runner.memory.total_bytes <= core.info.budget_bytes
    resident = {line.name: line.resident_bytes for line in lines}
    assert core.runner.executor.memory_bytes() <= core.runner.memory.executor_bytes  # type: ignore[attr-defined]
    assert 0 < resident["weights"] <= core.runner.memory.weights_bytes + 4096
