from __future__ import annotations

import pytest

from tests.scheduler.mock_model import Engine, expected, make_engine, request


def cached_tokens(engine: Engine, name: str, prompt: list[int], **fields: object) -> int:
    """Run one request to its end and return how much of it was found."""
    engine.add(request(name, prompt, **fields))  # type: ignore[arg-type]
    engine.run()
    output = engine.outputs[name]
    assert output.token_ids == expected(request(name, prompt), 256).token_ids
    return output.num_cached_tokens


@pytest.mark.parametrize("length", [k * 16 + d for k in range(1, 5) for d in (-1, 0, 1)])
def test_a_repeated_prompt_hits_whole_blocks_and_answers_the_same(length: int) -> None:
    engine, prompt = make_engine(), [i * 7 % 50 for i in range(length)]
    assert cached_tokens(engine, "cold", prompt) == 0
    assert cached_tokens(engine, "warm", prompt) == (length - 1) // 16 * 16
    assert cached_tokens(engine, "longer", [*prompt, 3]) == length // 16 * 16


def test_salts_keep_tenants_apart() -> None:
    engine, prompt = make_engine(), list(range(40))
    salts = [("1", "A"), ("2", "A"), ("3", "B"), ("4", None)]
    assert [cached_tokens(engine, name, prompt, cache_salt=salt) for name, salt in salts] == [0, 32, 0, 0]


def test_generated_tokens_can_be_hit_by_the_next_turn() -> None:
    engine, prompt = make_engine(), list(range(30))
    engine.add(request("turn 1", prompt, max_tokens=20))
    engine.run()
    following = [*prompt, *engine.outputs["turn 1"].token_ids, 9, 9]
    assert cached_tokens(engine, "turn 2", following) == 48


def test_a_shorter_and_a_different_continuation_reuse_only_what_is_equal() -> None:
    engine, prompt = make_engine(), list(range(64))
    cached_tokens(engine, "whole", prompt)
    assert cached_tokens(engine, "first turn", prompt[:33]) == 32
    assert cached_tokens(engine, "branch", [*prompt[:40], *range(500, 520)]) == 32


def test_a_burst_with_a_common_prefix_computes_it_once() -> None:
    engine = make_engine(max_num_batched_tokens=512)
    prefix = [i % 13 for i in range(96)]
    for number in range(4):
        engine.add(request(f"r{number}", [*prefix, number], max_tokens=1))
    schedule = engine.step()
    assert [(e.first_position, e.num_tokens) for e in schedule.entries] == [(0, 97), (96, 1), (96, 1), (96, 1)]
    for number in range(4):
        alone = expected(request(f"r{number}", [*prefix, number], max_tokens=1), 256)
        assert engine.outputs[f"r{number}"].token_ids == alone.token_ids


def test_cached_tokens_are_reported_once_and_counted_in_the_stats() -> None:
    engine = make_engine()
    cached_tokens(engine, "cold", list(range(40)))
    engine.add(request("warm", range(40), max_tokens=3))
    first, second = engine.scheduler.schedule(), None
    deltas = engine.scheduler.update(first, engine.model.execute(first))
    assert [d.num_cached_tokens for d in deltas] == [32]
    second = engine.scheduler.schedule()
    deltas = engine.scheduler.update(second, engine.model.execute(second))
    assert [d.num_cached_tokens for d in deltas] == [0]
    stats = engine.scheduler.stats
    assert (stats.prefix_cache_queries, stats.prefix_cache_hits, stats.prompt_tokens) == (80, 32, 80)


def test_without_prefix_caching_nothing_is_queried() -> None:
    engine = make_engine(enable_prefix_caching=False)
    assert [cached_tokens(engine, name, list(range(40))) for name in ("1", "2")] == [0, 0]
    assert engine.scheduler.stats.prefix_cache_queries == 0
