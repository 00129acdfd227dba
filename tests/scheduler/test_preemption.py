from __future__ import annotations

import random

from tests.scheduler.mock_model import expected, make_engine, request


def test_the_latest_request_gives_way_and_goes_on_where_it_stood() -> None:
    engine = make_engine(num_blocks=5)
    requests = [request("first", range(30), max_tokens=20), request("second", range(50, 80), max_tokens=20)]
    for each in requests:
        engine.add(each)
    engine.run()
    assert {name for s in engine.schedules for name in s.preempted} == {"second"}
    for each in requests:
        assert engine.outputs[each.request_id].token_ids == expected(each, 256).token_ids


def test_a_resumed_request_brings_its_generated_tokens_along() -> None:
    engine = make_engine(num_blocks=5)
    engine.add(request("first", range(30), max_tokens=20))
    engine.add(request("second", range(50, 80), max_tokens=20))
    engine.run()
    _, resumed = [a for s in engine.schedules for a in s.admissions if a.request.request_id == "second"]
    generated = engine.outputs["second"].token_ids
    assert 30 < len(resumed.token_ids) < 50
    assert resumed.token_ids == [*range(50, 80), *generated][: len(resumed.token_ids)]


def test_an_urgent_arrival_takes_the_row_of_the_least_urgent() -> None:
    engine = make_engine(max_num_seqs=2, policy="priority")
    engine.add(request("low", range(10), max_tokens=30, priority=9))
    engine.add(request("middle", range(20, 30), max_tokens=30, priority=5))
    engine.step()
    engine.add(request("urgent", range(40, 50), max_tokens=30, priority=0))
    schedule = engine.step()
    assert schedule.preempted == ["low"]
    assert [e.request_id for e in schedule.entries] == ["middle", "urgent"]
    engine.run()
    assert all(output.finish_reason == "length" for output in engine.outputs.values())


def test_an_urgent_arrival_takes_blocks_too() -> None:
    engine = make_engine(num_blocks=4, policy="priority")
    engine.add(request("low", range(60), max_tokens=3, priority=1))
    engine.step()
    engine.add(request("urgent", range(100, 140), max_tokens=3, priority=0))
    assert engine.step().preempted == ["low"]
    engine.run()
    assert list(engine.outputs["low"].token_ids) == expected(request("low", range(60), max_tokens=3), 256).token_ids


def test_nobody_is_preempted_for_an_arrival_that_would_not_fit_anyway() -> None:
    engine = make_engine(num_blocks=6, policy="priority")
    engine.add(request("top", range(60), max_tokens=3, priority=0))
    engine.add(request("low", range(100, 110), max_tokens=3, priority=9))
    engine.step()
    engine.add(request("large", range(200, 260), max_tokens=3, priority=5))
    assert engine.step().preempted == []
    engine.run()
    assert engine.scheduler.stats.num_preemptions == 0


def test_equal_priorities_are_served_by_arrival() -> None:
    engine = make_engine(max_num_seqs=1, policy="priority")
    for name in ("a", "b", "c"):
        engine.add(request(name, range(10), max_tokens=2))
    engine.run()
    order = [a.request.request_id for s in engine.schedules for a in s.admissions]
    assert order == ["a", "b", "c"]


def test_under_fcfs_priority_numbers_mean_nothing() -> None:
    engine = make_engine(max_num_seqs=1)
    engine.add(request("a", range(10), priority=9))
    engine.add(request("b", range(10), priority=0))
    engine.run()
    assert [a.request.request_id for s in engine.schedules for a in s.admissions] == ["a", "b"]
    assert engine.scheduler.stats.num_preemptions == 0


def test_eviction_pressure_changes_no_output() -> None:
    """Field case F39: 32 blocks, 20 prompts with common prefixes in random order, 500 requests."""
    draw = random.Random(39)
    stems = [[draw.randrange(11) for _ in range(80)] for _ in range(4)]
    prompts = [[*draw.choice(stems)[: draw.randrange(16, 81)], n, n + 1] for n in range(20)]
    engine = make_engine(num_blocks=32, max_num_seqs=16, max_num_batched_tokens=48, max_logits_rows=16)
    requests = [request(f"r{n}", draw.choice(prompts), max_tokens=draw.randrange(1, 50)) for n in range(500)]
    for each in requests:
        engine.add(each)
    engine.run()
    stats, cache = engine.scheduler.stats, engine.scheduler.cache
    assert min(stats.num_preemptions, stats.prefix_cache_hits, cache.num_evictions) > 50
    assert len(engine.model.chunk_sizes) > 20
    assert engine.model.num_tokens_computed < stats.prompt_tokens + stats.generation_tokens
    assert cache.num_free_blocks == 32
    alone = {(*r.prompt_token_ids, -1, r.max_tokens): r for r in requests}
    outputs = {key: expected(each, 256).token_ids for key, each in alone.items()}
    for each in requests:
        assert engine.outputs[each.request_id].token_ids == outputs[(*each.prompt_token_ids, -1, each.max_tokens)]
