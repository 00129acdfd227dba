"""The sampler as a recipe: logits → bias → temperature → top_k → top_p → noise → token.

One row at a time, float32 logits [vocab]. Each stage is a function and is skipped when nobody wants it. Ties
go to the lowest id everywhere.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from headrace.sampling.rng import gumbel_noise

Logits = npt.NDArray[np.float32]
Ids = npt.NDArray[np.int32]

GREEDY_TEMPERATURE = 1e-5
"""Below this, dividing would lose the order of the logits: the row is greedy."""


@dataclass(frozen=True, slots=True)
class SampleSettings:
    """What a row's sampling depends on, besides its logits and position; SamplingParams says what the values mean."""

    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    seed: int = 0
    sample_index: int = 0
    logit_bias: Mapping[int, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class TokenReport:
    """A token's place in the model's own distribution, and the likeliest tokens beside it."""

    logprob: float
    rank: int
    top_ids: list[int]
    top_logprobs: list[float]


def sample(logits: Logits, settings: SampleSettings, position: int) -> int:
    """The token that takes `position`, given the logits of the token before it."""
    x = add_bias(logits, settings.logit_bias)
    if settings.temperature < GREEDY_TEMPERATURE:
        return int(np.argmax(x))
    x = divide_by_temperature(x, settings.temperature)
    ids = candidates(x, settings.top_k, settings.top_p)
    return draw(x, ids, settings, position)


def add_bias(logits: Logits, bias: Mapping[int, float]) -> Logits:
    """A copy with the biases added; NaN, which may never win, becomes -inf."""
    x = np.where(np.isnan(logits), np.float32(-np.inf), logits).astype(np.float32)
    for token, value in bias.items():
        x[token] += np.float32(value)
    return x


def divide_by_temperature(x: Logits, temperature: float) -> Logits:
    return (x / np.float32(temperature)).astype(np.float32)


def candidates(x: Logits, top_k: int, top_p: float) -> Ids:
    """Ids that may be drawn, in order of (logit descending, id ascending)."""
    ids = np.argsort(-x, kind="stable").astype(np.int32)
    if 0 < top_k < len(ids):
        ids = ids[:top_k]
    if top_p < 1.0:
        ids = ids[: nucleus_size(x[ids], top_p)]
    return ids


def nucleus_size(x: Logits, top_p: float) -> int:
    """How many of the descending `x` it takes until their probabilities, among themselves, reach top_p; at least 1."""
    probabilities = np.exp(x.astype(np.float64) - log_sum_exp(x))
    before = np.cumsum(probabilities) - probabilities
    return max(1, int(np.count_nonzero(before < np.float32(top_p))))


def draw(x: Logits, ids: Ids, settings: SampleSettings, position: int) -> int:
    """argmax(logit + Gumbel noise) over `ids`: a draw from softmax over them."""
    noise = gumbel_noise(settings.seed, settings.sample_index, position, ids)
    noisy = (x[ids] + noise.astype(np.float32)).astype(np.float32)
    return int(ids[noisy == noisy.max()].min())


def report(logits: Logits, token: int, num_top: int) -> TokenReport:
    """Logprob and rank of `token` and the num_top likeliest, of the raw logits: neither bias nor temperature counts."""
    total = log_sum_exp(logits)
    rank = 1 + int(np.count_nonzero(logits > logits[token])) + int(np.count_nonzero(logits[:token] == logits[token]))
    top = np.argsort(-logits, kind="stable")[:num_top]
    return TokenReport(
        logprob=float(logits[token] - total),
        rank=rank,
        top_ids=[int(i) for i in top],
        top_logprobs=[float(logits[i] - total) for i in top],
    )


def log_sum_exp(x: Logits) -> float:
    """log(sum(exp(x))) in float64; the native one sums float32 in fixed tiles of the vocabulary."""
    highest = float(x.max())
    if not np.isfinite(highest):
        return highest
    return highest + float(np.log(np.exp(x.astype(np.float64) - highest).sum()))
