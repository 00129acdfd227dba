"""Headers are hostile until proved otherwise: every word is checked before anything is touched."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from headrace.runner import step_header as sh
from tests.native.toy_plan import PROMPT, VOCAB, ToyModel, admit, decode_step, prefill

N = len(PROMPT)
GOOD = sh.StepHeader(
    3,
    entries=(sh.Entry(0, 0, N), sh.Entry(2, 0, 4)),
    logits_rows=(sh.LogitsRow(0, 2, sh.KIND_SCORE), sh.LogitsRow(0, N - 1, sh.KIND_SAMPLE)),
    token_writes=(sh.TokenWrite(0, 0, tuple(PROMPT)), sh.TokenWrite(2, 0, (1, 2, 3, 4, 5))),
    row_params=(sh.RowParams(0, 0.7, 0.9, 20, 11, 1, 2, 3, ((4, 1.0), (9, -2.0))),),
    table_writes=(sh.TableWrite(0, 0, 0, (3, 9)), sh.TableWrite(0, 2, 0, (7,))),
    block_copies=((0, 3, 12),),
    overlay=((5, 2),),
    gate_targets=((1, 4),),
)


def _changed(**sections: object) -> sh.StepHeader:
    return dataclasses.replace(GOOD, **sections)  # type: ignore[arg-type]


def _params(**values: object) -> sh.StepHeader:
    return _changed(row_params=(dataclasses.replace(GOOD.row_params[0], **values),))  # type: ignore[arg-type]


BAD: dict[str, sh.StepHeader] = {
    "row past the end": _changed(entries=(sh.Entry(4, 0, N),)),
    "row below padding": _changed(entries=(sh.Entry(-2, 0, 1),), logits_rows=()),
    "row named twice": _changed(entries=(sh.Entry(0, 0, N), sh.Entry(0, 0, 4))),
    "empty query": _changed(entries=(sh.Entry(0, 0, 0),), logits_rows=()),
    "negative query": _changed(entries=(sh.Entry(0, 0, N), sh.Entry(2, 0, -4))),
    "negative position": _changed(entries=(sh.Entry(0, -1, N),)),
    "position past the context": _changed(entries=(sh.Entry(-1, 60, 5),), logits_rows=()),
    "tokens not known": _changed(entries=(sh.Entry(0, 0, N + 1),), logits_rows=()),
    "row never written": _changed(entries=(sh.Entry(1, 0, 1),), logits_rows=()),
    "too many tokens": _changed(entries=tuple(sh.Entry(-1, 0, 33) for _ in range(3)), logits_rows=()),
    "table too short": _changed(table_writes=(sh.TableWrite(0, 0, 0, (3,)),)),
    "block past the pool": _changed(table_writes=(sh.TableWrite(0, 0, 0, (3, 24)),)),
    "negative block": _changed(table_writes=(sh.TableWrite(0, 0, 0, (3, -1)),)),
    "table with a hole": _changed(table_writes=(sh.TableWrite(0, 0, 1, (3, 9)),)),
    "table too long": _changed(table_writes=(sh.TableWrite(0, 0, 0, (3, 9, 4, 5, 6)),)),
    "unknown group": _changed(table_writes=(sh.TableWrite(1, 0, 0, (3, 9)),)),
    "unknown group copied": _changed(block_copies=((-1, 3, 12),)),
    "null block copied": _changed(block_copies=((0, 0, 12),)),
    "null block overwritten": _changed(block_copies=((0, 3, 0),)),
    "block copied to itself": _changed(block_copies=((0, 3, 3),)),
    "copied block past the pool": _changed(block_copies=((0, 3, 24),)),
    "unknown token": _changed(token_writes=(sh.TokenWrite(0, 0, (*PROMPT[:-1], VOCAB)),)),
    "negative token": _changed(token_writes=(sh.TokenWrite(0, 0, (*PROMPT[:-1], -1)),)),
    "tokens with a hole": _changed(token_writes=(sh.TokenWrite(0, 1, tuple(PROMPT)),)),
    "tokens past the context": _changed(token_writes=(sh.TokenWrite(0, 0, (1,) * 65),)),
    "logits of no entry": _changed(logits_rows=(sh.LogitsRow(2, 0, sh.KIND_SCORE),)),
    "logits past the query": _changed(logits_rows=(sh.LogitsRow(0, N, sh.KIND_SAMPLE),)),
    "negative offset": _changed(logits_rows=(sh.LogitsRow(0, -1, sh.KIND_SAMPLE),)),
    "unknown kind": _changed(logits_rows=(sh.LogitsRow(0, 1, 2),)),
    "sampled in the middle": _changed(logits_rows=(sh.LogitsRow(0, 4, sh.KIND_SAMPLE),)),
    "sampled twice": _changed(logits_rows=(sh.LogitsRow(0, N - 1, sh.KIND_SAMPLE),) * 2),
    "scored without a successor": _changed(logits_rows=(sh.LogitsRow(0, N - 1, sh.KIND_SCORE),)),
    "logits of padding": _changed(entries=(sh.Entry(-1, 0, 1),), logits_rows=(sh.LogitsRow(0, 0, sh.KIND_SAMPLE),)),
    "too many logits rows": _changed(logits_rows=(sh.LogitsRow(0, 1, sh.KIND_SCORE),) * 65),
    "params of no row": _params(row=4),
    "negative temperature": _params(temperature=-1.0),
    "temperature not finite": _params(temperature=float("nan")),
    "top_p zero": _params(top_p=-0.0),
    "top_p above one": _params(top_p=1.5),
    "top_p not a number": _params(top_p=float("nan")),
    "negative top_k": _params(top_k=-1),
    "too many logprobs": _params(num_logprobs=6),
    "too few logprobs": _params(num_logprobs=-2),
    "too many prompt logprobs": _params(num_prompt_logprobs=6),
    "bias of an unknown token": _params(logit_bias=((VOCAB, 1.0),)),
    "bias given twice": _params(logit_bias=((4, 1.0), (4, 2.0))),
    "bias not finite": _params(logit_bias=((4, float("inf")),)),
    "overlaid token past the step": _changed(overlay=((N + 4, 0),)),
    "overlay row past the end": _changed(overlay=((0, 3),)),
    "unknown gate": _changed(gate_targets=((1024, 0),)),
}


def _state(model: ToyModel) -> tuple[Any, ...]:
    executor = model.executor
    rows = range(model.max_num_seqs)
    return (
        [executor.row_tokens(row).tolist() for row in rows],
        [executor.row_length(row) for row in rows],
        [executor.row_table(0, row).tolist() for row in rows],
        model.kv.tobytes(),
        executor.num_steps,
        executor.progress(),
    )


@pytest.mark.parametrize("name", BAD)
def test_a_malformed_header_is_refused_before_anything_is_touched(model: ToyModel, name: str) -> None:
    model.executor.step(prefill(3, PROMPT[:5], [20]))
    before = _state(model)
    with pytest.raises(ValueError, match="malformed step header"):
        model.executor.step(sh.encode_header(BAD[name]))
    assert _state(model) == before
    model.executor.step(sh.encode_header(GOOD))


@pytest.mark.parametrize("index", range(sh.HEADER_WORDS))
@pytest.mark.parametrize("change", [lambda w: w + 1, lambda w: w - 1, lambda w: w ^ -(2**31), lambda w: w | 2**30])
def test_every_fixed_word_counts(model: ToyModel, index: int, change: Callable[[int], int]) -> None:
    words = sh.encode_header(GOOD).copy()
    words[index] = np.int64(change(int(words[index]))).astype(np.int32)
    step_id, flags = index in (4, 5), index == 3
    if (step_id and words[5] >= 0) or (flags and words[3] == sh.FLAG_WAIT_GATES):
        model.executor.step(words)
    else:
        with pytest.raises(ValueError):
            model.executor.step(words)


def test_arrays_of_another_kind_are_refused(model: ToyModel) -> None:
    words = sh.encode_header(GOOD)
    for other in (words.astype(np.int64), words.reshape(1, -1), words.view(np.float32), np.repeat(words, 2)[::2]):
        with pytest.raises(TypeError):
            model.executor.step(other)
    with pytest.raises(ValueError):
        model.executor.step(words[:0])


@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_no_damage_to_a_header_breaks_the_executor(model: ToyModel, data: st.DataObject) -> None:
    base = data.draw(st.sampled_from([sh.encode_header(GOOD), prefill(1, PROMPT, [5, 6]), decode_step(0, N)]))
    words = base.copy()
    interesting = st.one_of(st.integers(-3, 30), st.integers(-(2**31), 2**31 - 1), st.sampled_from(base.tolist()))
    for _ in range(data.draw(st.integers(1, 4))):
        words[data.draw(st.integers(3, len(words) - 1))] = data.draw(interesting)
    if data.draw(st.booleans()):
        words = words[: data.draw(st.integers(0, len(words)))].copy()
        if len(words) > 2 and data.draw(st.booleans()):
            words[2] = len(words)
    model.executor.set_gate_timeout(0.001)
    before = _state(model)
    try:
        model.executor.step(words)
    except ValueError:
        assert _state(model) == before
    except TimeoutError:
        pass
    model.executor.step(prefill(1, PROMPT, [5, 6]))
    expected = model.reference_logits(PROMPT)[-1]
    assert np.abs(model.logits[0] - expected).max() < 2e-5 * np.ptp(expected)


def test_stale_rows_of_an_earlier_request_cannot_be_read(model: ToyModel) -> None:
    model.executor.step(prefill(0, PROMPT, [3, 9]))
    header = sh.StepHeader(1, entries=(sh.Entry(0, 0, 6),), **admit(0, PROMPT[:5], [3]))  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="knows 5 tokens"):
        model.executor.step(sh.encode_header(header))
