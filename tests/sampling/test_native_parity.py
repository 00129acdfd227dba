"""The native sampler against the recipe, on every kernel level."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace import _native
from headrace.sampling import SampleSettings, report, sample
from headrace.sampling.recipe import Logits, candidates
from headrace.sampling.rng import gumbel_noise
from tests.sampling.native_rows import NativeSampler

ISAS = _native.available_isas()
VOCAB = 9001  # more than one slice, not a multiple of a tile


@st.composite
def logits_rows(draw: st.DrawFn) -> Logits:
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    row = rng.standard_normal(VOCAB) * draw(st.sampled_from([0.01, 1.0, 4.0]))
    if draw(st.booleans()):
        row = np.round(row)  # many ties
    if draw(st.booleans()):
        row[rng.integers(0, VOCAB, 50)] = -np.inf
    return row.astype(np.float32)


SETTINGS = st.builds(
    SampleSettings,
    temperature=st.sampled_from([0.0, 1e-6, 0.3, 1.0, 1.7]),
    top_p=st.sampled_from([0.05, 0.5, 0.9, 0.999, 1.0]),
    top_k=st.sampled_from([0, 1, 2, 50, 3000, VOCAB, 2**31 - 1]),
    seed=st.integers(0, 2**63 - 1),
    sample_index=st.integers(0, 127),
    logit_bias=st.dictionaries(st.integers(0, VOCAB - 1), st.floats(-5, 5, width=32), max_size=4),
)


@pytest.fixture(scope="module", params=ISAS)
def native(request: pytest.FixtureRequest) -> NativeSampler:
    return NativeSampler(VOCAB, 4, isa=request.param, num_threads=2)


@settings(max_examples=60, deadline=None)
@given(row=logits_rows(), how=SETTINGS, position=st.integers(1, 250))
def test_the_native_token_is_the_recipes(
    native: NativeSampler, row: Logits, how: SampleSettings, position: int
) -> None:
    token = int(native.sample(row[None], [how], [position])["token_ids"][0])
    expected = sample(row, how, position)
    assert token == expected or _is_a_close_call(row, how, position, token, expected)


def _is_a_close_call(row: Logits, how: SampleSettings, position: int, token: int, expected: int) -> bool:
    """Native sums and noise are float32: the nucleus may end a token earlier or later when its probability is within
    rounding of top_p, and two tokens may swap when they are within the noise's error of each other."""
    if how.temperature == 0.0:
        return False
    if how.top_p < 1.0:
        nearby = (replace(how, top_p=how.top_p + shift) for shift in (-1e-6, 1e-6))
        if token in {sample(row, near, position) for near in nearby}:
            return True
    noise = gumbel_noise(how.seed, how.sample_index, position, np.array([token, expected], np.int32))
    x = (row[[token, expected]] + [how.logit_bias.get(i, 0.0) for i in (token, expected)]) / how.temperature
    a, b = x + noise
    return abs(a - b) < 2e-5 * max(1.0, abs(a))


@settings(max_examples=40, deadline=None)
@given(row=logits_rows(), how=SETTINGS, num_top=st.integers(0, 20))
def test_native_logprobs_and_ranks_are_the_recipes(
    native: NativeSampler, row: Logits, how: SampleSettings, num_top: int
) -> None:
    out = native.sample(row[None], [how], [9], num_logprobs=num_top)
    token = int(out["token_ids"][0])
    expected = report(row, token, num_top)
    assert out["ranks"][0] == expected.rank
    assert out["logprobs"][0] == pytest.approx(expected.logprob, abs=2e-5)
    assert out["top_ids"][0].tolist() == expected.top_ids + [-1] * (20 - num_top)
    assert out["top_logprobs"][0][:num_top] == pytest.approx(np.array(expected.top_logprobs, np.float32), abs=2e-5)
    assert np.isnan(out["top_logprobs"][0][num_top:]).all()


def test_logprobs_not_asked_for_are_not_reported(native: NativeSampler) -> None:
    out = native.sample(np.zeros((1, VOCAB), np.float32), [SampleSettings(temperature=0.0)], [3])
    assert out["token_ids"].tolist() == [0] and out["ranks"].tolist() == [0] and np.isnan(out["logprobs"]).all()


@pytest.mark.parametrize("top_k", [0, 7])
def test_rows_of_nothing_but_nan_or_minus_infinity_still_give_a_token(native: NativeSampler, top_k: int) -> None:
    for fill in (np.nan, -np.inf):
        for temperature in (0.0, 1.0):
            how = SampleSettings(temperature=temperature, top_k=top_k, top_p=0.9 if top_k else 1.0)
            out = native.sample(np.full((1, VOCAB), fill, np.float32), [how], [3], num_logprobs=2)
            assert 0 <= out["token_ids"][0] < VOCAB


def test_infinite_logits_win(native: NativeSampler) -> None:
    row = np.zeros((1, VOCAB), np.float32)
    row[0, 8500] = np.inf
    for how in (SampleSettings(temperature=0.0), SampleSettings(), SampleSettings(top_p=0.5), SampleSettings(top_k=5)):
        assert native.sample(row, [how], [3])["token_ids"].tolist() == [8500]


def test_a_seed_gives_the_same_token_in_any_row_of_any_batch(native: NativeSampler) -> None:
    rng = np.random.default_rng(4)
    logits = rng.standard_normal((4, VOCAB)).astype(np.float32)
    how = [
        SampleSettings(seed=11),
        SampleSettings(seed=12, top_k=40),
        SampleSettings(seed=13, top_p=0.8),
        SampleSettings(seed=14, temperature=0.5, logit_bias={3: 4.0}),
    ]
    positions = [4, 90, 7, 200]
    alone = [int(native.sample(logits[i : i + 1], [how[i]], [positions[i]])["token_ids"][0]) for i in range(4)]
    together = native.sample(logits, how, positions)["token_ids"].tolist()
    order = [2, 0, 3, 1]
    shuffled = native.sample(logits[order], [how[i] for i in order], [positions[i] for i in order], rows=[3, 1, 0, 2])[
        "token_ids"
    ].tolist()
    assert together == alone
    assert shuffled == [alone[i] for i in order]


def test_the_draw_does_not_depend_on_the_number_of_threads() -> None:
    rng = np.random.default_rng(5)
    logits = (rng.standard_normal((3, 40_000)) * 2).astype(np.float32)
    how = [SampleSettings(seed=1), SampleSettings(seed=2, top_p=0.95), SampleSettings(temperature=0.0)]
    drawn = []
    for num_threads in (1, 2, 3, 5):
        native = NativeSampler(40_000, 3, num_threads=num_threads)
        out = native.sample(logits, how, [5, 6, 7], num_logprobs=20)
        drawn.append(tuple(out[name].tobytes() for name in sorted(out)))
        native.executor.close()
    assert len(set(drawn)) == 1


@pytest.mark.parametrize(
    "how",
    [
        SampleSettings(temperature=1.0),
        SampleSettings(temperature=0.6),
        SampleSettings(temperature=1.3, top_k=5),
        SampleSettings(temperature=1.0, top_p=0.8),
        SampleSettings(temperature=1.5, top_k=7, top_p=0.9, logit_bias={3: 1.5}),
    ],
    ids=["plain", "cool", "top_k", "top_p", "all"],
)
def test_sampled_frequencies_follow_the_exact_distribution(how: SampleSettings) -> None:
    row = np.log(np.array([0.02, 0.25, 0.05, 0.08, 0.2, 0.1, 0.17, 0.01, 0.12], np.float32))
    x = (row + np.array([how.logit_bias.get(i, 0.0) for i in range(len(row))], np.float32)) / how.temperature
    kept = candidates(x.astype(np.float32), how.top_k, how.top_p)
    expected = np.zeros(len(row))
    expected[kept] = np.exp(x[kept]) / np.exp(x[kept]).sum()

    num_rows, num_steps = 64, 150
    native = NativeSampler(len(row), num_rows, max_model_len=num_steps + 8)
    counts = np.zeros(len(row))
    logits = np.tile(row, (num_rows, 1))
    for step in range(num_steps):
        rows = [
            SampleSettings(how.temperature, how.top_p, how.top_k, seed, seed % 3, how.logit_bias)
            for seed in range(num_rows)
        ]
        drawn = native.sample(logits, rows, [step + 1] * num_rows)["token_ids"]
        counts += np.bincount(drawn, minlength=len(row))
    total = num_rows * num_steps
    assert counts[expected == 0].sum() == 0
    live = expected > 0
    chi_square = ((counts[live] - total * expected[live]) ** 2 / (total * expected[live])).sum()
    assert chi_square < 27.9  # the 0.9995 quantile for 8 degrees of freedom
