"""The executor runs a whole plan: right numbers, and the same bits however the work is cut."""

from __future__ import annotations

import numpy as np
import pytest

from headrace import _native
from headrace.runner import step_header as sh
from tests.native.toy_plan import GATE, PROMPT, VOCAB, ToyModel, admit, decode_step, generate, prefill, sampled


@pytest.mark.parametrize("isa", _native.available_isas())
def test_logits_match_a_float64_model_in_prefill_and_decode(isa: str) -> None:
    toy = ToyModel(isa=isa, num_threads=2)
    toy.executor.step(prefill(0, PROMPT, [3, 9, 4]))
    tokens = list(PROMPT)
    for step in range(1, 8):
        expected = toy.reference_logits(tokens)[-1]
        assert np.abs(toy.logits[0] - expected).max() < 2e-5 * np.ptp(expected)
        assert sampled(toy) == expected.argmax()
        tokens.append(sampled(toy))
        toy.executor.step(decode_step(0, len(tokens) - 1, step))
    toy.executor.close()


def test_sampled_ids_enter_the_row_so_that_decode_headers_send_none(model: ToyModel) -> None:
    tokens = generate(model, PROMPT, 5)
    assert model.executor.row_length(0) == len(PROMPT) + 5
    assert model.executor.row_tokens(0)[: len(PROMPT) + 5].tolist() == PROMPT + tokens
    assert model.executor.row_table(0, 0).tolist() == [3, 9, 4]


@pytest.mark.parametrize("isa", _native.available_isas())
def test_any_number_of_threads_gives_the_same_bits(isa: str) -> None:
    seen = set()
    for num_threads in (1, 2, 3, 5):
        toy = ToyModel(isa=isa, num_threads=num_threads)
        logits = []
        toy.executor.step(prefill(0, PROMPT, [3, 9, 4], temperature=0.8, seed=5, num_logprobs=3))
        logits.append(toy.logits[:1].tobytes())
        for step in range(1, 6):
            toy.executor.step(decode_step(0, len(PROMPT) + step - 1, step))
            logits.append(toy.logits[:1].tobytes())
        outputs = toy.executor.outputs()
        seen.add((tuple(logits), toy.kv[1:].tobytes(), outputs["top_logprobs"].tobytes(), sampled(toy)))
        toy.executor.close()
    assert len(seen) == 1


def test_a_row_does_not_depend_on_company_or_on_chunks(model: ToyModel) -> None:
    model.executor.step(prefill(0, PROMPT, [3, 9, 4]))
    alone = model.logits[0].tobytes()
    other = [1, 2, 3, 4, 5, 6, 7]
    first = admit(2, PROMPT, [11, 12])
    second = admit(1, other, [13])
    sections = {name: (*first[name], *second[name]) for name in first}  # type: ignore[misc]
    for step, (begin, end) in enumerate([(0, 3), (3, 4), (4, 20)]):
        company = sh.Entry(1, 0, len(other)) if step == 0 else sh.Entry(1, len(other) - 1, 1)
        last = end == len(PROMPT)
        model.executor.step(
            sh.encode_header(
                sh.StepHeader(
                    step,
                    entries=(company, sh.Entry(2, begin, end - begin)),
                    logits_rows=(sh.LogitsRow(1, end - begin - 1, sh.KIND_SAMPLE),) if last else (),
                    **(sections if step == 0 else {}),  # type: ignore[arg-type]
                )
            )
        )
    assert model.logits[0].tobytes() == alone


def test_rows_that_share_a_prefix_may_share_its_blocks(model: ToyModel) -> None:
    prompt = PROMPT[:18]
    model.executor.step(prefill(0, prompt, [3, 9]))
    expected = model.logits[0].tobytes()
    header = sh.StepHeader(
        1,
        entries=(sh.Entry(1, 16, 2),),
        logits_rows=(sh.LogitsRow(0, 1, sh.KIND_SAMPLE),),
        **admit(1, prompt, [3, 10]),  # type: ignore[arg-type]
    )
    model.executor.step(sh.encode_header(header))
    assert model.logits[0].tobytes() == expected


def test_block_copies_happen_before_the_step(model: ToyModel) -> None:
    model.executor.step(prefill(0, PROMPT[:18], [3, 9]))
    expected = model.logits[0].tobytes()
    header = sh.StepHeader(
        1,
        entries=(sh.Entry(1, 17, 1),),
        logits_rows=(sh.LogitsRow(0, 0, sh.KIND_SAMPLE),),
        block_copies=((0, 9, 15), (0, 15, 16)),
        **admit(1, PROMPT[:18], [3, 16]),  # type: ignore[arg-type]
    )
    model.executor.step(sh.encode_header(header))
    assert model.logits[0].tobytes() == expected
    assert np.array_equal(model.kv[15, :16], model.kv[9, :16])


def test_staged_writes_replace_the_end_of_a_row(model: ToyModel) -> None:
    generate(model, PROMPT, 3)
    rewritten = [*PROMPT[:10], 40, 41]
    header = sh.StepHeader(
        9,
        entries=(sh.Entry(0, 10, 2),),
        logits_rows=(sh.LogitsRow(0, 1, sh.KIND_SAMPLE),),
        token_writes=(sh.TokenWrite(0, 10, (40, 41)),),
    )
    model.executor.step(sh.encode_header(header))
    expected = model.reference_logits(rewritten)[-1]
    assert np.abs(model.logits[0] - expected).max() < 2e-5 * np.ptp(expected)
    assert model.executor.row_length(0) == 13


def test_scored_rows_report_the_prompt_tokens_logprobs(model: ToyModel) -> None:
    n = len(PROMPT)
    header = sh.StepHeader(
        0,
        entries=(sh.Entry(0, 0, n),),
        logits_rows=tuple(sh.LogitsRow(0, i, sh.KIND_SCORE) for i in range(n - 1)),
        **admit(0, PROMPT, [1, 2], num_prompt_logprobs=2),  # type: ignore[arg-type]
    )
    model.executor.step(sh.encode_header(header))
    logits = model.reference_logits(PROMPT)[:-1]
    expected = logits - np.log(np.exp(logits).sum(axis=-1, keepdims=True))
    out = model.executor.outputs()
    assert out["token_ids"].tolist() == PROMPT[1:]
    assert out["logprobs"] == pytest.approx(expected[np.arange(n - 1), PROMPT[1:]], abs=1e-4)
    assert out["top_ids"][:, 0].tolist() == logits.argmax(axis=-1).tolist()
    assert (out["top_ids"][:, 2:] == -1).all()
    assert model.executor.row_length(0) == n


def test_overlaid_tokens_take_their_embedding_from_the_overlay(model: ToyModel) -> None:
    header = sh.StepHeader(
        0,
        entries=(sh.Entry(0, 0, 6),),
        logits_rows=(sh.LogitsRow(0, 5, sh.KIND_SAMPLE),),
        overlay=((2, 1), (4, 0)),
        **admit(0, PROMPT[:6], [1]),  # type: ignore[arg-type]
    )
    model.executor.step(sh.encode_header(header))
    expected = model.reference_logits(PROMPT[:6], {2: model.overlay[1], 4: model.overlay[0]})[-1]
    assert np.abs(model.logits[0] - expected).max() < 2e-5 * np.ptp(expected)
    model.executor.step(prefill(0, PROMPT[:6], [1], step_id=1))
    plain = model.reference_logits(PROMPT[:6])[-1]
    assert np.abs(model.logits[0] - plain).max() < 2e-5 * np.ptp(plain)


def test_a_tap_holds_each_rows_last_token(model: ToyModel) -> None:
    model.executor.step(prefill(2, PROMPT, [3, 9]))
    assert np.array_equal(model.tapped[2], model.x[len(PROMPT) - 1])
    assert not model.tapped[[0, 1, 3]].any()


def test_padding_entries_change_nothing(model: ToyModel) -> None:
    model.executor.step(prefill(0, PROMPT, [3, 9]))
    expected, kv = model.logits[0].tobytes(), model.kv.tobytes()
    header = sh.StepHeader(
        1,
        entries=(sh.Entry(-1, 3, 4), sh.Entry(0, 0, len(PROMPT)), sh.Entry(-1, 0, 1)),
        logits_rows=(sh.LogitsRow(1, len(PROMPT) - 1, sh.KIND_SAMPLE),),
        **admit(0, PROMPT, [3, 9]),  # type: ignore[arg-type]
    )
    model.executor.step(sh.encode_header(header))
    assert model.logits[0].tobytes() == expected and model.kv.tobytes() == kv
    assert model.executor.token_rows.tolist() == [-1] * 4 + [0] * len(PROMPT) + [-1]


def test_an_empty_step_and_a_step_without_logits_run(model: ToyModel) -> None:
    model.executor.step(sh.encode_header(sh.StepHeader(4)))
    header = sh.StepHeader(5, entries=(sh.Entry(0, 0, 4),), **admit(0, PROMPT[:4], [1]))  # type: ignore[arg-type]
    model.executor.step(sh.encode_header(header))
    assert len(model.executor.outputs()["token_ids"]) == 0
    assert model.executor.progress() == (5, -1) and model.executor.num_steps == 2


def test_the_last_position_can_be_computed_but_gets_no_successor(model: ToyModel) -> None:
    prompt = [i % VOCAB for i in range(model.max_model_len)]
    model.executor.step(prefill(0, prompt, [1, 2, 3, 4]))
    assert 0 <= sampled(model) < VOCAB
    assert model.executor.row_length(0) == model.max_model_len
    assert model.executor.row_tokens(0).tolist() == prompt


def test_slices_and_segments_of_a_plan_give_the_same_bits_as_a_step(model: ToyModel) -> None:
    header = prefill(0, PROMPT, [3, 9])
    model.executor.step(header)
    expected = model.logits[0].tobytes()
    for first in range(model.executor.num_calls):
        model.executor.run_calls(header, first, 1)
    assert model.logits[0].tobytes() == expected and model.executor.row_length(0) == len(PROMPT) + 1
    for segment in range(model.executor.num_segments):
        model.executor.run_segment(header, segment)
    assert model.logits[0].tobytes() == expected and model.executor.num_steps == 3


def test_a_slice_continues_only_the_step_that_was_begun(model: ToyModel) -> None:
    header = prefill(0, PROMPT, [3, 9])
    with pytest.raises(ValueError, match="continue"):
        model.executor.run_calls(header, 1, 1)
    model.executor.run_calls(header, 0, 1)
    with pytest.raises(ValueError, match="continue"):
        model.executor.run_calls(prefill(0, PROMPT, [3, 9], step_id=8), 1, 1)
    for first, count in [(-1, 1), (0, -1), (0, 10_000), (10_000, 1), (2**62, 2**62)]:
        with pytest.raises(ValueError):
            model.executor.run_calls(header, first, count)


def test_profiling_adds_up_the_time_of_every_call(model: ToyModel) -> None:
    model.executor.profile(True)
    generate(model, PROMPT, 3)
    times = model.executor.call_times_ns()
    assert len(times) == len(model.calls) and sum(times) > 0 and times[1] > 0
    model.executor.profile(False)
    model.executor.step(decode_step(0, len(PROMPT) + 2, 9))
    assert model.executor.call_times_ns() == times


def test_busy_time_phases_and_trace_belong_to_the_profile() -> None:
    model = ToyModel(num_threads=3)
    model.executor.step(prefill(0, PROMPT, [3, 9, 4]))
    assert sum(model.executor.call_busy_ns()) == 0 and model.executor.trace() == []
    model.executor.profile(True, trace=True)
    generate(model, PROMPT, 2)
    times, busy, phases = (
        model.executor.call_times_ns(),
        model.executor.call_busy_ns(),
        model.executor.call_phases(),
    )
    trace = model.executor.trace()
    assert all(b <= 3 * t for b, t in zip(busy, times, strict=True))
    by_call = [sum(end - start for _, call, _, start, end in trace if call == i) for i in range(len(times))]
    assert by_call == busy
    assert {thread for thread, *_ in trace} <= {0, 1, 2}
    # Every thread prepares so few values for itself: one phase in each of two steps. A gate has none at all.
    assert phases[1] == 2 and all(n == 0 for n, call in zip(phases, model.calls, strict=True) if call["op"] == GATE)
    model.executor.profile(True)
    assert model.executor.trace() == [] and sum(model.executor.call_phases()) == 0
