"""The recipe itself: each stage does what its name says."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.sampling import SampleSettings, gumbel_noise, report, sample
from headrace.sampling.recipe import candidates, nucleus_size
from headrace.sampling.rng import noise_bits

UNEVEN = np.log(np.array([0.1, 0.4, 0.2, 0.3], np.float32))


def test_temperature_zero_takes_the_lowest_id_of_equal_logits() -> None:
    assert sample(np.array([1, 3, 3, 2], np.float32), SampleSettings(temperature=0.0), 5) == 1


def test_a_bias_can_force_or_forbid_a_token() -> None:
    for seed in range(50):
        forced = SampleSettings(seed=seed, logit_bias={2: 100.0})
        forbidden = SampleSettings(seed=seed, logit_bias={1: -100.0})
        assert sample(UNEVEN, forced, 1) == 2
        assert sample(UNEVEN, forbidden, 1) != 1


def test_candidates_come_by_descending_logit_then_ascending_id() -> None:
    x = np.array([0, 2, 1, 2, 1], np.float32)
    assert candidates(x, 0, 1.0).tolist() == [1, 3, 2, 4, 0]
    assert candidates(x, 3, 1.0).tolist() == [1, 3, 2]


@pytest.mark.parametrize(
    ("top_p", "kept"), [(0.05, 1), (0.39, 1), (0.41, 2), (0.69, 2), (0.71, 3), (0.95, 4), (1.0, 4)]
)
def test_top_p_keeps_the_smallest_set_that_reaches_it(top_p: float, kept: int) -> None:
    assert nucleus_size(np.sort(UNEVEN)[::-1], top_p) == kept


def test_top_p_counts_among_what_top_k_left() -> None:
    # Of 0.4 and 0.3 the first holds 0.57: enough for 0.5, not for 0.6.
    assert candidates(UNEVEN, 2, 0.5).tolist() == [1]
    assert candidates(UNEVEN, 2, 0.6).tolist() == [1, 3]


def test_a_nan_logit_never_wins() -> None:
    x = np.array([np.nan, -5.0, np.nan], np.float32)
    assert sample(x, SampleSettings(temperature=0.0), 1) == 1
    assert all(sample(x, SampleSettings(seed=s), 1) == 1 for s in range(20))


@given(seed=st.integers(0, 2**63 - 1), index=st.integers(0, 127), position=st.integers(0, 2**20))
def test_noise_depends_on_the_id_and_not_on_who_stands_beside_it(seed: int, index: int, position: int) -> None:
    ids = np.arange(40, dtype=np.int32)
    assert np.array_equal(gumbel_noise(seed, index, position, ids)[7:9], gumbel_noise(seed, index, position, ids[7:9]))


def test_every_part_of_the_key_changes_the_noise() -> None:
    ids = np.arange(64, dtype=np.int32)
    keys = [(1, 0, 5), (2, 0, 5), (1, 1, 5), (1, 0, 6), (1 + 2**32, 0, 5), (1 + 2**62, 0, 5)]
    drawn = {noise_bits(*key, ids).tobytes() for key in keys}
    assert len(drawn) == len(keys)


def test_the_noise_has_the_moments_of_a_gumbel_distribution() -> None:
    noise = gumbel_noise(3, 0, 17, np.arange(200_000, dtype=np.int32))
    assert abs(noise.mean() - 0.5772157) < 0.01
    assert abs(noise.var() - np.pi**2 / 6) < 0.03


def test_the_report_ranks_by_raw_logits() -> None:
    r = report(UNEVEN, 2, 3)
    assert r.rank == 3 and r.top_ids == [1, 3, 2]
    assert r.logprob == pytest.approx(np.log(0.2), abs=1e-6)
    assert r.top_logprobs == pytest.approx(np.log([0.4, 0.3, 0.2]), abs=1e-6)
    assert report(np.zeros(4, np.float32), 2, 0).rank == 3
