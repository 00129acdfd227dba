"""What a step gives back (StepResult), what a request's stream carries (TokenDelta), what users see."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

import msgspec

FinishReason = Literal["stop", "length", "abort", "error"]


class TokenLogprobs(msgspec.Struct, frozen=True, gc=False):
    """Log-probability of one token, and of the likeliest ones at its position."""

    token_id: int
    logprob: float
    rank: int
    """1 for the likeliest token of the vocabulary."""
    top: list[tuple[int, float]] = []
    """(token id, logprob), likeliest first."""


class StepResult(msgspec.Struct, frozen=True):
    """The runner's answer to a Schedule; lists are aligned with `schedule.entries`."""

    sampled: list[int | None]
    logprobs: list[TokenLogprobs | None]
    prompt_logprobs: list[list[TokenLogprobs]]


class TokenDelta(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """What one step adds to one request."""

    request_id: str
    token_ids: list[int] = []
    logprobs: list[TokenLogprobs] = []
    prompt_logprobs: list[TokenLogprobs] = []
    """Of prompt tokens 1, 2, …; several deltas may carry parts, in order."""
    finish_reason: FinishReason | None = None
    stop_reason: int | None = None
    """The stop token id that ended the output, the model's own end of sequence included."""
    num_cached_tokens: int = 0
    error: str | None = None


@dataclass(slots=True)
class CompletionOutput:
    """One of a request's n completions."""

    index: int
    text: str = ""
    token_ids: list[int] = field(default_factory=list)
    logprobs: list[TokenLogprobs] | None = None
    finish_reason: FinishReason | None = None
    stop_reason: int | str | None = None


@dataclass(slots=True)
class RequestOutput:
    """A request's outputs: all of them at the end, or what is there so far while streaming."""

    request_id: str
    prompt: str | None
    prompt_token_ids: list[int]
    outputs: list[CompletionOutput]
    prompt_logprobs: list[TokenLogprobs | None] | None = None
    num_cached_tokens: int = 0
    finished: bool = False
