"""Fields that completions and chat completions share, and how many tokens a request took."""

from __future__ import annotations

from typing import Annotated, Any

import msgspec
from msgspec import Meta

from headrace.core.params import (
    MAX_LOGIT_BIAS,
    MAX_LOGPROBS,
    MAX_N,
    MAX_SEED,
    MAX_STOP_STRING_CHARS,
    MAX_STOP_STRINGS,
    MAX_STOP_TOKEN_IDS,
    MAX_TEMPERATURE,
    MAX_TOKEN_ID,
)

MAX_REQUEST_TOKENS = (1 << 53) - 1
"""Large enough that the answer to a smaller number can name the prompt's length and the largest allowed."""

TokenCount = Annotated[int, Meta(ge=0, le=MAX_REQUEST_TOKENS)]
TokenId = Annotated[int, Meta(ge=0, le=MAX_TOKEN_ID)]
ModelName = Annotated[str, Meta(max_length=512, description="A served model; the only one when left out.")]
ShortText = Annotated[str, Meta(max_length=1024)]
StopString = Annotated[str, Meta(min_length=1, max_length=MAX_STOP_STRING_CHARS)]
Stop = StopString | Annotated[list[StopString], Meta(max_length=MAX_STOP_STRINGS)]
Penalty = Annotated[float, Meta(ge=-2, le=2, description="Only 0 is supported yet.")]
TopLogprobs = Annotated[int, Meta(ge=0, le=MAX_LOGPROBS)]
TemplateArguments = Annotated[dict[str, Any], Meta(max_length=64)]


class StreamOptions(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """What a stream carries besides text."""

    include_usage: bool | None = None
    """One more chunk, without choices, with the request's usage before the stream ends."""
    continuous_usage_stats: bool | None = None
    """Usage so far in every chunk (with include_usage)."""
    include_obfuscation: bool | None = None
    """Accepted; no padding is sent."""


class GenerationRequest(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """Fields of both APIs."""

    model: ModelName | None = None
    n: Annotated[int, Meta(ge=1, le=MAX_N)] | None = None
    max_completion_tokens: TokenCount | None = None
    temperature: Annotated[float, Meta(ge=0, le=MAX_TEMPERATURE)] | None = None
    top_p: Annotated[float, Meta(gt=0, le=1)] | None = None
    top_k: Annotated[int, Meta(ge=-1, le=MAX_TOKEN_ID)] | None = None
    seed: Annotated[int, Meta(ge=0, le=MAX_SEED)] | None = None
    stop: Stop | None = None
    stop_token_ids: Annotated[list[TokenId], Meta(max_length=MAX_STOP_TOKEN_IDS)] | None = None
    ignore_eos: bool | None = None
    logit_bias: (
        Annotated[dict[str, Annotated[float, Meta(ge=-100, le=100)]], Meta(max_length=MAX_LOGIT_BIAS)] | None
    ) = None
    skip_special_tokens: bool | None = None
    include_stop_str_in_output: bool | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    priority: Annotated[int, Meta(ge=-(1 << 31), le=(1 << 31) - 1)] | None = None
    cache_salt: Annotated[str, Meta(min_length=1, max_length=256)] | None = None
    return_token_ids: bool | None = None

    user: ShortText | None = None
    store: bool | None = None
    metadata: Annotated[dict[str, ShortText], Meta(max_length=16)] | None = None
    service_tier: ShortText | None = None
    safety_identifier: ShortText | None = None
    prompt_cache_key: ShortText | None = None
    prompt_cache_retention: ShortText | None = None

    frequency_penalty: Penalty | None = None
    presence_penalty: Penalty | None = None
    repetition_penalty: Annotated[float, Meta(gt=0, le=2, description="Only 1 is supported yet.")] | None = None
    min_p: Annotated[float, Meta(ge=0, le=1, description="Only 0 is supported yet.")] | None = None
    min_tokens: Annotated[int, Meta(ge=0, le=MAX_REQUEST_TOKENS, description="Only 0 is supported yet.")] | None = None
    best_of: Annotated[int, Meta(ge=1, le=MAX_N, description="Only n is supported yet.")] | None = None
    prompt_logprobs: Annotated[TopLogprobs, Meta(description="Not supported yet; use echo.")] | None = None
    response_format: Annotated[dict[str, Any], Meta(description='Only {"type": "text"} yet.')] | None = None
    structured_outputs: Annotated[dict[str, Any], Meta(description="Not supported yet.")] | None = None


class PromptTokensDetails(msgspec.Struct):
    """Where the prompt's tokens came from."""

    cached_tokens: int


class Usage(msgspec.Struct):
    """Tokens of a request: each prompt counted once, outputs summed over all choices."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: PromptTokensDetails
