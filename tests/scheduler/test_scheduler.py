from __future__ import annotations

import pytest

from headrace.cache import IntegrityError
from headrace.core.errors import ConfigError, ContextLengthError, InvalidRequestError
from headrace.core.outputs import StepResult
from headrace.scheduler import SchedulerLimits
from tests.scheduler.mock_model import Engine, expected, logprob_of, make_engine, request


def shares(engine: Engine) -> list[tuple[str, int, int]]:
    """(request, first position, tokens) of each entry of the next step."""
    return [(e.request_id, e.first_position, e.num_tokens) for e in engine.step().entries]


def test_a_request_is_prefilled_then_decoded_one_token_a_step() -> None:
    engine = make_engine()
    engine.add(request("a", range(10), max_tokens=3))
    assert [shares(engine) for _ in range(3)] == [[("a", 0, 10)], [("a", 10, 1)], [("a", 11, 1)]]
    assert not engine.scheduler.has_work
    assert engine.outputs["a"].finish_reason == "length"
    assert len(engine.outputs["a"].token_ids) == 3


def test_a_long_prompt_is_prefilled_in_chunks_of_the_token_budget() -> None:
    engine = make_engine(max_num_batched_tokens=24)
    engine.add(request("a", range(60), max_tokens=1))
    assert [shares(engine) for _ in range(3)] == [[("a", 0, 24)], [("a", 24, 24)], [("a", 48, 12)]]
    assert [s.entries[0].samples for s in engine.schedules] == [False, False, True]


def test_decodes_go_before_a_prefill_that_takes_what_is_left_of_the_budget() -> None:
    engine = make_engine(max_num_batched_tokens=16, policy="priority")
    engine.add(request("talking", range(8), max_tokens=9, priority=1))
    engine.step()
    engine.add(request("long", range(100, 140), max_tokens=1, priority=0))
    assert shares(engine) == [("talking", 8, 1), ("long", 0, 15)]
    assert shares(engine) == [("talking", 9, 1), ("long", 15, 15)]


def test_requests_are_admitted_in_order_and_never_overtaken() -> None:
    engine = make_engine(num_blocks=4)
    engine.add(request("a", range(30), max_tokens=3))
    engine.add(request("large", range(100, 140), max_tokens=1))
    engine.add(request("small", range(200, 205), max_tokens=1))
    assert shares(engine) == [("a", 0, 30)]
    assert shares(engine) == [("a", 30, 1)]  # two blocks are free, `large` needs three
    engine.step()
    assert shares(engine) == [("large", 0, 40), ("small", 0, 5)]


def test_a_request_keeps_its_row_and_the_lowest_free_row_is_taken() -> None:
    engine = make_engine(max_num_seqs=2)
    for name, max_tokens in (("a", 1), ("b", 4), ("c", 2)):
        engine.add(request(name, range(5), max_tokens=max_tokens))
    engine.run()
    rows = {(e.request_id, e.row) for s in engine.schedules for e in s.entries}
    assert rows == {("a", 0), ("b", 1), ("c", 0)}


def test_table_growth_is_told_with_the_entry_that_needs_it() -> None:
    engine = make_engine()
    engine.add(request("a", range(31), max_tokens=4))
    steps = [engine.step().entries[0] for _ in range(4)]
    assert [(e.table_start, [len(ids) for ids in e.new_block_ids]) for e in steps] == [
        ((0,), [2]),
        ((2,), [0]),
        ((2,), [1]),
        ((3,), [0]),
    ]


@pytest.mark.parametrize("stop", range(11))
def test_a_stop_token_ends_the_output_and_is_part_of_it(stop: int) -> None:
    engine = make_engine()
    engine.add(request("a", range(10), max_tokens=20, stop_token_ids=[stop]))
    engine.run()
    free_running = expected(request("a", range(10), max_tokens=20), 256).token_ids
    output = engine.outputs["a"]
    if stop in free_running:
        assert output.token_ids == free_running[: free_running.index(stop) + 1]
        assert (output.finish_reason, output.stop_reason) == ("stop", stop)
    else:
        assert (output.finish_reason, output.stop_reason) == ("length", None)


def test_the_output_ends_at_the_context_window() -> None:
    engine = make_engine(max_model_len=20)
    engine.add(request("a", range(15), max_tokens=100))
    engine.run()
    assert len(engine.outputs["a"].token_ids) == 5
    assert engine.outputs["a"].finish_reason == "length"


def test_logprobs_are_passed_on_only_to_those_who_asked() -> None:
    engine = make_engine()
    engine.add(request("asks", range(5), max_tokens=1, logprobs=0))
    engine.add(request("does not", range(5), max_tokens=1))
    schedule = engine.scheduler.schedule()
    told = [logprob_of(7, ()), logprob_of(8, ())]
    deltas = engine.scheduler.update(schedule, StepResult([7, 8], list(told), [[], []]))
    assert [d.logprobs for d in deltas] == [[told[0]], []]


@pytest.mark.parametrize("phase", ["waiting", "prefilling", "decoding"])
def test_an_abort_in_any_phase_frees_everything(phase: str) -> None:
    engine = make_engine(max_num_batched_tokens=16)
    engine.add(request("a", range(40), max_tokens=10))
    for _ in range({"waiting": 0, "prefilling": 1, "decoding": 4}[phase]):
        engine.step()
    assert engine.scheduler.abort("a")
    engine.scheduler.check_integrity()
    assert not engine.scheduler.has_work
    assert engine.scheduler.cache.num_free_blocks == 64
    assert not engine.scheduler.abort("a")
    assert engine.step().entries == []


def test_two_hundred_streams_closed_after_two_tokens_leave_nothing_behind() -> None:
    engine = make_engine(num_blocks=512)
    for number in range(200):
        engine.add(request(f"r{number}", [number] * 20, max_tokens=200))
    while engine.scheduler.has_work:
        engine.step()
        for name, output in engine.outputs.items():
            if len(output.token_ids) >= 2:
                engine.scheduler.abort(name)
    engine.scheduler.check_integrity()
    assert {len(output.token_ids) for output in engine.outputs.values()} == {2}
    assert engine.scheduler.cache.num_free_blocks == 512


def test_an_id_may_be_used_again_while_the_old_requests_step_is_still_running() -> None:
    engine = make_engine()
    engine.add(request("a", range(10), max_tokens=2))
    schedule = engine.scheduler.schedule()
    result = engine.model.execute(schedule)
    engine.scheduler.abort("a")
    engine.add(request("a", range(20, 30), max_tokens=2))
    assert engine.scheduler.update(schedule, result) == []
    engine.run()
    assert engine.outputs["a"].token_ids == expected(request("a", range(20, 30), max_tokens=2), 256).token_ids


def test_an_id_in_use_is_refused() -> None:
    engine = make_engine()
    engine.add(request("a", range(10)))
    with pytest.raises(InvalidRequestError, match="'a' is in use"):
        engine.scheduler.add(request("a", range(10)))


def test_an_empty_prompt_is_refused() -> None:
    with pytest.raises(InvalidRequestError, match="no tokens"):
        make_engine().scheduler.add(request("a", []))


def test_a_prompt_that_fills_the_window_is_refused_and_one_token_less_runs() -> None:
    engine = make_engine(max_model_len=32)
    with pytest.raises(ContextLengthError, match="32 tokens"):
        engine.scheduler.add(request("a", range(32)))
    engine.add(request("b", range(31)))
    engine.run()
    assert len(engine.outputs["b"].token_ids) == 1


def test_what_could_not_run_alone_is_refused_and_what_just_fits_runs() -> None:
    engine = make_engine(num_blocks=3)
    with pytest.raises(InvalidRequestError, match="49 tokens, the KV cache holds 48"):
        engine.scheduler.add(request("a", range(40), max_tokens=10))
    assert not engine.scheduler.has_work
    engine.add(request("b", range(40), max_tokens=9))  # the last token sampled is never computed
    engine.run()
    assert len(engine.outputs["b"].token_ids) == 9


def test_results_are_taken_in_the_order_of_the_steps() -> None:
    engine = make_engine()
    engine.add(request("a", range(10)))
    schedule = engine.scheduler.schedule()
    result = engine.model.execute(schedule)
    engine.scheduler.update(schedule, result)
    with pytest.raises(IntegrityError, match="in order"):
        engine.scheduler.update(schedule, result)


def test_nothing_to_do_is_an_empty_schedule() -> None:
    engine = make_engine()
    schedule = engine.scheduler.schedule()
    assert (schedule.entries, schedule.num_tokens, schedule.num_logits_rows) == ([], 0, 0)


@pytest.mark.parametrize("field", ["max_num_seqs", "max_num_batched_tokens", "max_model_len", "max_logits_rows"])
def test_limits_below_one_are_refused(field: str) -> None:
    fields = {"max_num_seqs": 1, "max_num_batched_tokens": 1, "max_model_len": 1, "max_logits_rows": 1, field: 0}
    with pytest.raises(ConfigError, match=field):
        SchedulerLimits(**fields)  # type: ignore[arg-type]


def test_an_unknown_policy_is_refused() -> None:
    with pytest.raises(ConfigError, match="fcfs, priority"):
        make_engine(policy="random")
