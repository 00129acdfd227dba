"""Completion: one of a request's outputs, from token deltas to text; and the deltas that callers see."""

from __future__ import annotations

from dataclasses import dataclass, field

from headrace.core.outputs import FinishReason, TokenDelta, TokenLogprobs
from headrace.core.params import SamplingParams
from headrace.text.stream import TextStream
from headrace.text.tokenizer import Tokenizer


@dataclass(slots=True)
class CompletionDelta:
    """What one step adds to completion `index`."""

    index: int
    text: str = ""
    token_ids: list[int] = field(default_factory=list)
    logprobs: list[TokenLogprobs] = field(default_factory=list)
    prompt_logprobs: list[TokenLogprobs] = field(default_factory=list)
    finish_reason: FinishReason | None = None
    stop_reason: int | str | None = None
    num_cached_tokens: int = 0
    error: str | None = None


class Completion:
    """Text side of one engine request: detokenises and matches stop strings."""

    def __init__(self, index: int, request_id: str, tokenizer: Tokenizer, params: SamplingParams) -> None:
        self.index, self.request_id = index, request_id
        self.finished = False
        self._stream = TextStream(tokenizer, params)
        self._eos = frozenset() if params.ignore_eos else frozenset(tokenizer.eos_token_ids)

    def push(self, delta: TokenDelta) -> CompletionDelta:
        """The text of a token delta. After a stop string `finished` is set: the engine must be told to abort."""
        final = delta.finish_reason is not None
        text = self._stream.push(delta.token_ids, final)
        used = text.num_tokens_used
        out = CompletionDelta(
            index=self.index,
            text=text.text,
            token_ids=delta.token_ids[:used],
            logprobs=delta.logprobs[:used],
            prompt_logprobs=delta.prompt_logprobs,
            finish_reason=delta.finish_reason,
            stop_reason=None if delta.stop_reason in self._eos else delta.stop_reason,
            num_cached_tokens=delta.num_cached_tokens,
            error=delta.error,
        )
        if text.stop is not None:
            out.finish_reason, out.stop_reason = "stop", text.stop
        self.finished = out.finish_reason is not None
        return out
