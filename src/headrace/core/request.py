"""EngineRequest: a request as the engine sees it. Token ids only; text stays on the server's side."""

from __future__ import annotations

import msgspec


class EngineRequest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One sequence to generate, already validated: it fits the context and every number is in range.

    A prompt with n > 1 becomes n of these that differ in `request_id` and `sample_index`.
    """

    request_id: str
    prompt_token_ids: list[int]
    max_tokens: int
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    seed: int = 0
    sample_index: int = 0
    stop_token_ids: list[int] = []
    """Ids that end the output: the model's end-of-sequence ids (unless ignored) and the caller's own."""
    logprobs: int | None = None
    prompt_logprobs: int | None = None
    logit_bias: dict[int, float] = {}
    priority: int = 0
    """Lower runs first under the priority policy."""
    arrival_s: float = 0.0
    cache_salt: str | None = None
    """Requests share prefix-cache blocks only with requests of the same salt."""
