"""The invariance contract, over whole engines: raw logits bytes do not depend on how a request was run.

Every case compares with the plainest run there is: the request alone, its prompt whole, nothing cached, one thread.
`make test` covers every pair of values of the dimensions; `make test-full` the whole product.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from headrace import _native
from headrace.config.engine import EngineConfig
from tests.invariance.harness import BLOCK, Bench, Evidence, Trace, requests

Make = Callable[..., Path]
NUM_REQUESTS = 12
LEVELS = tuple(_native.available_isas())
KV_DTYPES = next(s.choices for s in EngineConfig.specs() if s.name == "kv_cache_dtype") or ()

DIMENSIONS: dict[str, tuple[Any, ...]] = {
    "model": (
        ("llama", "Q4_0"),
        ("llama", "Q4_1"),
        ("llama-rope3", "Q8_0"),
        ("llama-odd", "f32"),
        ("llama-biased", "bf16"),
        ("qwen2", "f16"),
        ("qwen3", "f32"),
    ),
    "isa": LEVELS,
    "kv_cache_dtype": tuple(name for name in KV_DTYPES if name != "auto"),
    "chunk": (1, 7, 16, 100, 512),
    "crowd": ("alone", "together", "staggered"),
    "cache": ("off", "cold", "warm", "evicting"),
    "num_threads": (1, 2, 3, 5),
    "block_size": (16, 32),
    "overlap": (True, False),
}
Case = dict[str, Any]


def pairwise(dimensions: dict[str, tuple[Any, ...]], seed: int = 0) -> list[Case]:
    """A greedy set of cases in which every pair of values of two dimensions occurs."""
    rng = random.Random(seed)
    names = list(dimensions)
    missing = {
        ((a, x), (b, y))
        for a, b in itertools.combinations(names, 2)
        for x in range(len(dimensions[a]))
        for y in range(len(dimensions[b]))
    }
    cases = []
    while missing:
        best: dict[str, int] = {}
        best_new = -1
        (a, x), (b, y) = min(missing)
        for _ in range(60):
            pick = {n: rng.randrange(len(dimensions[n])) for n in names} | {a: x, b: y}
            new = sum(((m, pick[m]), (n, pick[n])) in missing for m, n in itertools.combinations(names, 2))
            if new > best_new:
                best, best_new = pick, new
        missing -= {((m, best[m]), (n, best[n])) for m, n in itertools.combinations(names, 2)}
        cases.append({n: dimensions[n][i] for n, i in best.items()})
    return cases


PAIRS = pairwise(DIMENSIONS)
PRODUCT = [dict(zip(DIMENSIONS, values, strict=True)) for values in itertools.product(*DIMENSIONS.values())]


def name_of(case: Case) -> str:
    return "-".join("".join(v) if isinstance(v, tuple) else str(v) for v in case.values())


@pytest.fixture(scope="module")
def tiny(tiny_hf: Make, tiny_gguf: Make) -> Callable[[tuple[str, str]], Path]:
    return lambda model: tiny_gguf(*model) if model[1].startswith("Q") else tiny_hf(*model)


@pytest.fixture(scope="module")
def plain(tiny: Callable[[tuple[str, str]], Path]) -> Callable[[Case], dict[str, Trace]]:
    """The plainest run of each (model, level, KV dtype), made once."""
    known: dict[tuple[Any, ...], dict[str, Trace]] = {}

    def run(case: Case) -> dict[str, Trace]:
        key = (case["model"], case["isa"], case["kv_cache_dtype"])
        if key not in known:
            options = {"isa": key[1], "kv_cache_dtype": key[2], "enable_prefix_caching": False, "overlap": False}
            bench = Bench(tiny(key[0]), max_num_batched_tokens=512, **options)
            known[key] = {}
            for request in requests(NUM_REQUESTS):
                known[key] |= bench.run([request])
            bench.close()
        return known[key]

    return run


def run_case(case: Case, model: Path) -> tuple[dict[str, Trace], Evidence]:
    options = {
        "isa": case["isa"],
        "kv_cache_dtype": case["kv_cache_dtype"],
        "max_num_batched_tokens": case["chunk"],
        "num_threads": case["num_threads"],
        "block_size": case["block_size"],
        "overlap": case["overlap"],
        "enable_prefix_caching": case["cache"] != "off",
    }
    if case["cache"] == "evicting":
        probe = Bench(model, kv_cache_dtype=case["kv_cache_dtype"], block_size=case["block_size"])
        spec = probe.core.runner.memory.specs[0]
        probe.close()
        # Room for two and a half of the longest sequences, so that a crowd evicts and preempts.
        longest = spec.blocks_needed(4 * BLOCK + 1 + 10)
        kv_bytes = max(1 << 16, (1 + longest * 5 // 2) * spec.bytes_per_block)
        options |= {
            "max_model_len": 5 * BLOCK + 16,
            "kv_cache_memory_bytes": kv_bytes,
        }
    bench = Bench(model, **options)
    work = requests(NUM_REQUESTS)
    if case["cache"] == "warm":
        bench.run([r for r in work if int(r.request_id) % 3 != 1])
    if case["crowd"] == "alone":
        results: dict[str, Trace] = {}
        for request in work:
            results |= bench.run([request])
    else:
        arrivals = [0 if case["crowd"] == "together" else 2 * i for i in range(NUM_REQUESTS)]
        results = bench.run(work, arrivals=arrivals)
    evidence = bench.evidence
    bench.close()
    return results, evidence


def check(case: Case, tiny: Callable[[tuple[str, str]], Path], plain: Callable[[Case], dict[str, Trace]]) -> Evidence:
    results, evidence = run_case(case, tiny(case["model"]))
    assert results == plain(case)
    assert max(evidence.chunk_sizes) <= case["chunk"]
    if case["chunk"] > 1:
        assert max(evidence.chunk_sizes) > 1
    if case["crowd"] == "together" and case["cache"] != "evicting" and case["chunk"] > 1:
        assert max(evidence.batch_sizes) > 1
    if case["cache"] in ("warm", "evicting"):
        assert evidence.prefix_cache_hits > 0
    return evidence


@pytest.mark.parametrize("case", PAIRS, ids=name_of)
def test_every_pair_of_conditions_gives_the_plain_run_s_bits(
    case: Case, tiny: Callable[[tuple[str, str]], Path], plain: Callable[[Case], dict[str, Trace]]
) -> None:
    check(case, tiny, plain)


@pytest.mark.full
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("model", DIMENSIONS["model"], ids="".join)
@pytest.mark.parametrize("isa", LEVELS)
def test_the_whole_product_of_conditions_gives_the_plain_run_s_bits(
    model: tuple[str, str],
    isa: str,
    tiny: Callable[[tuple[str, str]], Path],
    plain: Callable[[Case], dict[str, Trace]],
) -> None:
    for case in PRODUCT:
        if case["model"] == model and case["isa"] == isa:
            check(case, tiny, plain)


def test_the_pairs_really_mix_chunks_evict_preempt_and_hit(
    tiny: Callable[[tuple[str, str]], Path], plain: Callable[[Case], dict[str, Trace]]
) -> None:
    base = {n: values[0] for n, values in DIMENSIONS.items()}
    crowd = check(base | {"crowd": "staggered", "cache": "cold", "chunk": 16}, tiny, plain)
    assert crowd.mixed_steps > 0
    assert crowd.prefix_cache_hits > 0
    tight = check(base | {"crowd": "together", "cache": "evicting", "chunk": 100}, tiny, plain)
    assert tight.num_preemptions > 0


def test_a_plain_run_repeats_itself(plain: Callable[[Case], dict[str, Trace]], tiny: Callable[..., Path]) -> None:
    case = {n: values[0] for n, values in DIMENSIONS.items()} | {"cache": "off", "crowd": "alone", "chunk": 512}
    for _ in range(3):
        assert run_case(case, tiny(case["model"]))[0] == plain(case)


def test_different_requests_have_different_logits(plain: Callable[[Case], dict[str, Trace]]) -> None:
    """A hash that does not depend on the logits would pass everything above."""
    case = {n: values[0] for n, values in DIMENSIONS.items()}
    hashes = [h for trace in plain(case).values() for h in trace.logits_hashes]
    assert len(set(hashes)) > len(hashes) * 0.9
