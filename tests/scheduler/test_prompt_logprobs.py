from __future__ import annotations

import pytest

from tests.scheduler.mock_model import expected, make_engine, request


@pytest.mark.parametrize("length", [1, 2, 15, 16, 17, 40])
@pytest.mark.parametrize("max_logits_rows", [1, 3, 64])
@pytest.mark.parametrize("max_tokens", [0, 1, 5])
def test_every_prompt_token_but_the_first_has_its_logprob_in_order(
    length: int, max_logits_rows: int, max_tokens: int
) -> None:
    engine = make_engine(max_logits_rows=max_logits_rows)
    prompt = [i * 3 % 20 for i in range(length)]
    engine.add(request("warms the cache", prompt, max_tokens=1))
    engine.run()
    asked = request("a", prompt, max_tokens=max_tokens, prompt_logprobs=0)
    engine.add(asked)
    engine.run()
    output, alone = engine.outputs["a"], expected(asked, 256)
    assert len(output.prompt_logprobs) == length - 1
    assert output.prompt_logprobs == alone.prompt_logprobs
    assert output.token_ids == alone.token_ids
    assert output.finish_reason == "length"
    assert output.num_cached_tokens == 0


def test_a_chunk_is_no_longer_than_the_logits_rows_left() -> None:
    engine = make_engine(max_logits_rows=4)
    engine.add(request("talking", range(50, 60), max_tokens=20))
    engine.step()
    engine.add(request("a", range(8), max_tokens=1, prompt_logprobs=0))
    steps = [engine.step().entries[1] for _ in range(3)]
    assert [(e.num_tokens, e.num_prompt_logprobs, e.samples) for e in steps] == [
        (3, 3, False),
        (3, 3, False),
        (2, 1, True),
    ]


def test_a_preempted_request_reports_no_position_twice() -> None:
    engine = make_engine(num_blocks=4, max_num_batched_tokens=20, max_logits_rows=20, policy="priority")
    asked = request("a", range(60), max_tokens=2, prompt_logprobs=0, priority=1)
    engine.add(asked)
    engine.step()
    engine.add(request("urgent", range(100, 120), max_tokens=5, priority=0))
    engine.run()
    assert engine.scheduler.stats.num_preemptions == 1
    assert engine.outputs["a"].prompt_logprobs == expected(asked, 256).prompt_logprobs
    assert engine.outputs["a"].token_ids == expected(asked, 256).token_ids
    resumed = [e for s in engine.schedules for e in s.entries if e.request_id == "a"][1]
    assert resumed.first_position == 16  # 20 positions had been reported; those may come from the cache
    assert (resumed.num_tokens, resumed.num_prompt_logprobs) == (4, 0)


def test_a_sequence_waits_for_a_logits_row_and_prefills_meanwhile() -> None:
    engine = make_engine(max_logits_rows=1)
    engine.add(request("a", range(10), max_tokens=3))
    engine.add(request("b", range(20, 30), max_tokens=3))
    engine.run()
    assert all(s.num_logits_rows <= 1 for s in engine.schedules)
    assert [len(o.token_ids) for o in engine.outputs.values()] == [3, 3]
