"""The scheduler's side of the overlapped loop: step N + 1 is scheduled before the results of step N are known."""

from __future__ import annotations

from collections import deque

import pytest

from tests.scheduler.mock_model import expected, make_engine, request


@pytest.mark.parametrize("lag", [1, 2])
def test_scheduling_ahead_gives_the_same_outputs(lag: int) -> None:
    engine = make_engine(num_blocks=11, max_num_seqs=4, lag=lag)
    requests = [request(f"r{n}", [n, *range(40)], max_tokens=25, stop_token_ids=[3] * (n % 2)) for n in range(12)]
    for each in requests:
        engine.add(each)
    engine.run()
    assert engine.scheduler.stats.num_preemptions > 0
    for each in requests:
        alone = expected(each, 256)
        assert engine.outputs[each.request_id].token_ids == alone.token_ids
        assert engine.outputs[each.request_id].finish_reason == alone.finish_reason


def test_no_step_is_scheduled_beyond_max_tokens() -> None:
    engine = make_engine(lag=2)
    engine.add(request("a", range(10), max_tokens=3))
    engine.run()
    assert sum(len(s.entries) for s in engine.schedules) == 3


def test_row_and_blocks_stay_until_the_last_step_that_names_them_has_completed() -> None:
    engine = make_engine(num_blocks=4, max_num_seqs=1)
    scheduler = engine.scheduler
    engine.add(request("a", range(60), max_tokens=3))
    first = scheduler.schedule()
    second = scheduler.schedule()
    scheduler.abort("a")
    scheduler.check_integrity()
    assert scheduler.cache.num_free_blocks == 0
    engine.add(request("b", range(5), max_tokens=1))
    assert scheduler.schedule().entries == []
    assert scheduler.update(first, engine.model.execute(first)) == []
    assert scheduler.cache.num_free_blocks == 0
    assert scheduler.update(second, engine.model.execute(second)) == []
    assert scheduler.cache.num_free_blocks == 4
    engine.run()
    assert engine.outputs["b"].finish_reason == "length"


def test_nobody_else_is_preempted_while_blocks_are_on_their_way_back() -> None:
    engine = make_engine(num_blocks=6, max_num_batched_tokens=96, lag=1)
    for name in ("a", "b", "c"):
        engine.add(request(name, [ord(name)] * 32, max_tokens=10))
    assert [engine.step().preempted for _ in range(3)] == [[], ["c"], []]
    engine.run()
    assert all(len(output.token_ids) == 10 for output in engine.outputs.values())


def test_an_urgent_arrival_takes_one_row_even_if_it_is_not_free_at_once() -> None:
    engine = make_engine(max_num_seqs=3, policy="priority", lag=1)
    for name in ("a", "b", "c"):
        engine.add(request(name, range(10), max_tokens=20, priority=5))
    engine.step()
    engine.add(request("urgent", range(10), max_tokens=2, priority=0))
    assert [engine.step().preempted for _ in range(2)] == [["c"], []]
    assert [a.request.request_id for a in engine.schedules[-1].admissions] == ["urgent"]
    engine.run()
    assert engine.scheduler.stats.num_preemptions == 1


def test_a_preempted_request_waits_for_its_token_even_if_there_is_room() -> None:
    engine = make_engine(max_num_seqs=3, policy="priority")
    scheduler, model = engine.scheduler, engine.model
    low = request("low", range(10), max_tokens=8, priority=9)
    for each in (low, request("x", range(10), max_tokens=2), request("y", range(10), max_tokens=2)):
        engine.add(each)
    in_flight = deque((s, model.execute(s)) for s in (scheduler.schedule() for _ in range(3)))

    def land() -> None:
        for delta in scheduler.update(*in_flight.popleft()):
            engine.outputs[delta.request_id].add(delta)

    land()
    engine.add(request("urgent", range(10), max_tokens=1))
    assert scheduler.schedule().preempted == ["low"]
    land()  # x and y are done: there are rows for both, but the third step still samples a token of `low`
    schedule = scheduler.schedule()
    assert [e.request_id for e in schedule.entries] == ["urgent"]
    in_flight.append((schedule, model.execute(schedule)))
    land()
    land()
    engine.run()
    assert engine.outputs["low"].token_ids == expected(low, 256).token_ids


def test_a_token_sampled_for_a_request_that_was_preempted_meanwhile_is_kept() -> None:
    engine = make_engine(max_num_seqs=1, policy="priority", lag=1)
    low = request("low", range(10), max_tokens=5, priority=1)
    engine.add(low)
    engine.step()
    engine.add(request("urgent", range(20, 30), max_tokens=2, priority=0))
    schedule = engine.step()
    assert schedule.preempted == ["low"]
    assert len(engine.outputs["low"].token_ids) == 1
    engine.run()
    assert engine.outputs["low"].token_ids == expected(low, 256).token_ids
