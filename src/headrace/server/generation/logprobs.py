"""Log-probabilities in the shapes of the two APIs. Values go out as the engine gave them, unrounded."""

from __future__ import annotations

import codecs
from collections.abc import Iterable

from headrace.core.outputs import TokenLogprobs
from headrace.server.schemas.chat import ContentLogprob, TokenLogprob
from headrace.server.schemas.completions import CompletionLogprobs
from headrace.server.serving import Tokenizer

LOWEST_LOGPROB = -9999.0
"""Stands for minus infinity, which JSON cannot write."""


def token_name(tokenizer: Tokenizer, token_id: int) -> str:
    """The token's text; a token that is no whole UTF-8 text is written `bytes:\\xe2\\x80`, as OpenAI does."""
    raw = tokenizer.token_bytes(token_id)
    if not raw:
        return tokenizer.token_text(token_id)
    try:
        return raw.decode()
    except UnicodeDecodeError:
        return "bytes:" + "".join(f"\\x{byte:02x}" for byte in raw)


def alternatives(entry: TokenLogprobs) -> list[tuple[int, float]]:
    """The likeliest tokens, likeliest first; the token itself comes last when it is not one of them."""
    own = (entry.token_id, entry.logprob)
    return entry.top if any(token_id == entry.token_id for token_id, _ in entry.top) else [*entry.top, own]


def chat_logprobs(
    tokenizer: Tokenizer, entries: Iterable[TokenLogprobs], *, num_top: int, skip_special_tokens: bool
) -> list[ContentLogprob]:
    """One entry per token. `num_top` 0 leaves the alternatives out."""

    def one(token_id: int, logprob: float) -> tuple[str, float, list[int] | None]:
        is_text = not (skip_special_tokens and tokenizer.is_special(token_id))
        raw = list(tokenizer.token_bytes(token_id)) if is_text else None
        return token_name(tokenizer, token_id), max(logprob, LOWEST_LOGPROB), raw

    return [
        ContentLogprob(
            *one(entry.token_id, entry.logprob),
            [TokenLogprob(*one(*pair)) for pair in alternatives(entry)] if num_top else [],
        )
        for entry in entries
    ]


class CompletionLogprobsBuilder:
    """One choice's logprobs, part by part. `text_offset` counts characters of the choice's text, echo included."""

    def __init__(self, tokenizer: Tokenizer, *, skip_special_tokens: bool) -> None:
        self._tokenizer = tokenizer
        self._skip_special_tokens = skip_special_tokens
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._offset = 0

    def part(self, entries: Iterable[TokenLogprobs], first_token_id: int | None = None) -> CompletionLogprobs:
        """The next tokens; `first_token_id` is the prompt's first one, which nothing precedes: no logprob."""
        made = CompletionLogprobs([], [], [], [])
        if first_token_id is not None:
            self._append(made, first_token_id, None, None)
        for entry in entries:
            top: dict[str, float] = {}
            for token_id, logprob in alternatives(entry):
                # Two ids may have one text: the likelier one stands for it.
                top.setdefault(token_name(self._tokenizer, token_id), max(logprob, LOWEST_LOGPROB))
            self._append(made, entry.token_id, max(entry.logprob, LOWEST_LOGPROB), top)
        return made

    def _append(
        self, made: CompletionLogprobs, token_id: int, logprob: float | None, top: dict[str, float] | None
    ) -> None:
        made.tokens.append(token_name(self._tokenizer, token_id))
        made.token_logprobs.append(logprob)
        made.top_logprobs.append(top)
        made.text_offset.append(self._offset)
        if not (self._skip_special_tokens and self._tokenizer.is_special(token_id)):
            self._offset += len(self._decoder.decode(self._tokenizer.token_bytes(token_id)))


def extend(whole: CompletionLogprobs, part: CompletionLogprobs) -> None:
    """Append `part` to `whole`."""
    whole.tokens += part.tokens
    whole.token_logprobs += part.token_logprobs
    whole.top_logprobs += part.top_logprobs
    whole.text_offset += part.text_offset
