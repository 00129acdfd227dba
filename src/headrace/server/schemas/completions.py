"""`/v1/completions`: request, response and chunk."""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec
from msgspec import UNSET, Meta, UnsetType

from headrace.server.schemas.common import GenerationRequest, TokenCount, TopLogprobs, Usage

PromptTokenId = Annotated[int, Meta(ge=0, le=(1 << 31) - 1)]
Prompt = str | list[PromptTokenId | str | list[PromptTokenId]]


class CompletionRequest(GenerationRequest, forbid_unknown_fields=True, kw_only=True):
    """A text, a list of texts, a list of token ids, or a list of such lists; one choice per prompt and n."""

    prompt: Prompt
    max_tokens: TokenCount | None = 16
    """Null is the rest of the context; 0 is allowed with echo. `max_completion_tokens` wins over it."""
    echo: bool | None = None
    logprobs: TopLogprobs | None = None
    add_special_tokens: bool | None = None
    suffix: Annotated[str, Meta(max_length=1 << 16, description="Only an empty one is supported yet.")] | None = None


class CompletionLogprobs(msgspec.Struct):
    """Aligned lists, one entry per token. The first prompt token of an echo has no logprob: null."""

    tokens: list[str] = []
    token_logprobs: list[float | None] = []
    top_logprobs: list[dict[str, float] | None] = []
    text_offset: list[int] = []
    """Characters before the token, in this choice's text."""


class CompletionChoice(msgspec.Struct, kw_only=True):
    """One output, or in a stream what is new of it."""

    index: int
    text: str
    logprobs: CompletionLogprobs | None = None
    finish_reason: Literal["stop", "length"] | None = None
    stop_reason: int | str | None = None
    """The stop string or stop token id that ended it."""
    token_ids: list[int] | UnsetType = UNSET
    prompt_token_ids: list[int] | UnsetType = UNSET


class CompletionResponse(msgspec.Struct, kw_only=True):
    """A whole answer, or one chunk of a stream."""

    id: str
    object: Literal["text_completion"] = "text_completion"
    created: int
    model: str
    choices: list[CompletionChoice]
    usage: Usage | UnsetType | None = UNSET
