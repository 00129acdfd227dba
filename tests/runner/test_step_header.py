"""Headers survive the round trip, and a schedule becomes the header it means."""

from __future__ import annotations

import contextlib
import struct

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.core.request import EngineRequest
from headrace.core.schedule import BlockCopy, RowAdmission, Schedule, ScheduledEntry
from headrace.runner import step_header as sh

INT32 = st.integers(-(2**31), 2**31 - 1)
COUNT = st.integers(0, 2**31 - 1)
FLOAT = st.floats(width=32, allow_nan=False)
IDS = st.lists(COUNT, max_size=6).map(tuple)
BIAS = st.dictionaries(COUNT, FLOAT, max_size=4).map(lambda pairs: tuple(sorted(pairs.items())))
TOP_P = st.floats(2.0**-20, 1.0, width=32)


def section(record: st.SearchStrategy[object]) -> st.SearchStrategy[tuple[object, ...]]:
    return st.lists(record, max_size=4).map(tuple)


HEADERS = st.builds(
    sh.StepHeader,
    step_id=st.integers(0, 2**63 - 1),
    entries=section(st.builds(sh.Entry, st.integers(-1, 63), COUNT, st.integers(1, 512))),
    logits_rows=section(st.builds(sh.LogitsRow, COUNT, COUNT, st.sampled_from([sh.KIND_SAMPLE, sh.KIND_SCORE]))),
    token_writes=section(st.builds(sh.TokenWrite, COUNT, COUNT, IDS)),
    row_params=section(
        st.builds(sh.RowParams, COUNT, FLOAT, TOP_P, COUNT, st.integers(0, 2**64 - 1), COUNT, INT32, INT32, BIAS)
    ),
    table_writes=section(st.builds(sh.TableWrite, COUNT, COUNT, COUNT, IDS)),
    block_copies=section(st.tuples(COUNT, COUNT, COUNT)),
    overlay=section(st.tuples(COUNT, COUNT)),
    gate_targets=section(st.tuples(COUNT, st.integers(0, 2**63 - 1))),
    waits_gates=st.booleans(),
)


@given(HEADERS)
def test_records_survive_the_round_trip(header: sh.StepHeader) -> None:
    words = sh.encode_header(header)
    assert words.dtype == np.int32 and words.ndim == 1 and not words.flags.writeable
    assert sh.decode(words) == header
    assert np.array_equal(sh.encode_header(sh.decode(words)), words)


@given(HEADERS, st.data())
def test_a_damaged_header_is_decoded_or_refused_with_a_value_error(header: sh.StepHeader, data: st.DataObject) -> None:
    words = sh.encode_header(header).copy()
    words[data.draw(st.integers(0, len(words) - 1))] = data.draw(INT32)
    cut = words[: data.draw(st.integers(0, len(words)))]
    for damaged in (words, cut):
        with contextlib.suppress(ValueError):
            assert isinstance(sh.decode(damaged), sh.StepHeader)


def _request(**values: object) -> EngineRequest:
    return EngineRequest(request_id="a", prompt_token_ids=[7, 8, 9], max_tokens=4, **values)  # type: ignore[arg-type]


def test_a_schedule_becomes_entries_writes_and_logits_rows() -> None:
    request = _request(
        temperature=0.5, top_p=0.25, top_k=3, seed=2**63 - 1, sample_index=2, logprobs=4, prompt_logprobs=1,
        logit_bias={9: -1.5, 2: 3.0},
    )  # fmt: skip
    schedule = Schedule(
        step_id=2**40,
        entries=[
            ScheduledEntry("b", 3, 16, 1, (1,), ([12],), True),
            ScheduledEntry("a", 0, 0, 3, (0,), ([5, 6],), True, num_prompt_logprobs=2),
            ScheduledEntry("c", 1, 8, 4, (1,), ([],), False),
        ],
        admissions=[RowAdmission(0, request, [7, 8, 9])],
        block_copies=[BlockCopy(0, 4, 12)],
    )
    words = sh.encode(schedule)
    header = sh.decode(words)
    assert header == sh.StepHeader(
        2**40,
        entries=(sh.Entry(3, 16, 1), sh.Entry(0, 0, 3), sh.Entry(1, 8, 4)),
        logits_rows=(
            sh.LogitsRow(0, 0, sh.KIND_SAMPLE),
            sh.LogitsRow(1, 0, sh.KIND_SCORE),
            sh.LogitsRow(1, 1, sh.KIND_SCORE),
            sh.LogitsRow(1, 2, sh.KIND_SAMPLE),
        ),
        token_writes=(sh.TokenWrite(0, 0, (7, 8, 9)),),
        row_params=(sh.RowParams(0, 0.5, 0.25, 3, 2**63 - 1, 2, 4, 1, ((2, 3.0), (9, -1.5))),),
        table_writes=(sh.TableWrite(0, 3, 1, (12,)), sh.TableWrite(0, 0, 0, (5, 6))),
        block_copies=((0, 4, 12),),
    )
    assert np.array_equal(sh.encode_header(header), words)


def test_requests_without_logprobs_ask_for_none() -> None:
    words = sh.encode(Schedule(0, [], [RowAdmission(0, _request(), [1])]))
    (params,) = sh.decode(words).row_params
    assert (params.num_logprobs, params.num_prompt_logprobs) == (-1, -1)


def test_a_top_p_too_small_for_single_precision_stays_above_zero() -> None:
    words = sh.encode(Schedule(0, [], [RowAdmission(0, _request(top_p=1e-300), [1])]))
    assert sh.decode(words).row_params[0].top_p > 0


def test_a_decode_step_costs_few_words() -> None:
    entries = [ScheduledEntry(str(r), r, 100, 1, (0,), ([],), True) for r in range(64)]
    assert len(sh.encode(Schedule(5, entries))) == sh.HEADER_WORDS + 64 * 9


@pytest.mark.parametrize("index", [0, 1, 2])
def test_another_magic_version_or_size_is_refused(index: int) -> None:
    words = sh.encode_header(sh.StepHeader(0)).copy()
    words[index] += 1
    with pytest.raises(ValueError, match="step header"):
        sh.decode(words)


def test_the_magic_spells_the_formats_name() -> None:
    assert struct.pack("<I", sh.MAGIC) == b"HRS1"
