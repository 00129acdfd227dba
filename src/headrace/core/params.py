"""SamplingParams: what a caller may ask of one request's sampling, validated once."""

from __future__ import annotations

import math
from dataclasses import dataclass, fields
from typing import Any

from headrace.core.errors import InvalidRequestError, unknown_name_message

MAX_N = 128
MAX_STOP_STRINGS = 32
MAX_STOP_STRING_CHARS = 1024
MAX_STOP_TOKEN_IDS = 128
MAX_LOGPROBS = 20
MAX_LOGIT_BIAS = 1024
MAX_TEMPERATURE = 100.0
MAX_TOKENS = 1 << 24
MAX_TOKEN_ID = (1 << 31) - 1
MAX_SEED = (1 << 63) - 1


@dataclass(frozen=True, slots=True, kw_only=True)
class _Fields:
    """Field definitions; SamplingParams adds the friendly constructor."""

    n: int = 1
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    seed: int | None = None
    stop: tuple[str, ...] = ()
    stop_token_ids: tuple[int, ...] = ()
    ignore_eos: bool = False
    max_tokens: int | None = 16
    logprobs: int | None = None
    prompt_logprobs: int | None = None
    logit_bias: dict[int, float] | None = None
    skip_special_tokens: bool = True
    include_stop_str_in_output: bool = False


class SamplingParams(_Fields):
    """Sampling parameters of one request. vLLM's names and meanings; immutable.

    n: completions per prompt, 1..128.
    temperature: 0 is greedy; otherwise logits are divided by it, up to 100.
    top_p: keep the smallest set of tokens whose probability reaches it, in (0, 1].
    top_k: keep the k likeliest tokens; 0 or -1 keeps all.
    seed: same seed, same prompt, same tokens, whatever else is in the batch; None draws one.
    stop: strings that end the output (at most 32 of 1,024 characters); a single string is accepted.
    stop_token_ids: token ids that end the output.
    ignore_eos: go on after the model's end-of-sequence token.
    max_tokens: tokens to generate; None is the rest of the context; 0 only with prompt_logprobs.
    logprobs: return the logprob of each sampled token and of the so many likeliest (0..20).
    prompt_logprobs: the same for the prompt's tokens.
    logit_bias: token id → value added to its logit, -100..100.
    skip_special_tokens: leave special tokens out of the text.
    include_stop_str_in_output: keep the matched stop string in the text.

    Raises InvalidRequestError (naming the parameter) for unknown names and values out of range.
    """

    __slots__ = ()

    def __init__(self, **values: Any) -> None:
        known = {f.name for f in fields(_Fields)}
        for name in values:
            if name not in known:
                raise InvalidRequestError(unknown_name_message("sampling parameter", name, known), param=name)
        stop = values.get("stop")
        if stop is None:
            values.pop("stop", None)
        else:
            values["stop"] = (stop,) if isinstance(stop, str) else tuple(stop)
        if values.get("stop_token_ids") is None:
            values.pop("stop_token_ids", None)
        else:
            values["stop_token_ids"] = tuple(values["stop_token_ids"])
        if values.get("top_k") == -1:
            values["top_k"] = 0
        super().__init__(**values)
        _validate(self)


def _validate(p: _Fields) -> None:
    _integer("n", p.n, 1, MAX_N)
    _number("temperature", p.temperature, 0.0, MAX_TEMPERATURE)
    _number("top_p", p.top_p, 0.0, 1.0)
    if p.top_p == 0.0:
        raise InvalidRequestError("top_p must be greater than 0", param="top_p")
    _integer("top_k", p.top_k, 0, MAX_TOKEN_ID)
    if p.seed is not None:
        _integer("seed", p.seed, 0, MAX_SEED)
    if len(p.stop) > MAX_STOP_STRINGS:
        raise InvalidRequestError(f"stop takes at most {MAX_STOP_STRINGS} strings, got {len(p.stop)}", param="stop")
    for s in p.stop:
        if not isinstance(s, str) or not s or len(s) > MAX_STOP_STRING_CHARS:
            raise InvalidRequestError(
                f"each stop must be a string of 1 to {MAX_STOP_STRING_CHARS} characters", param="stop"
            )
    if len(p.stop_token_ids) > MAX_STOP_TOKEN_IDS:
        raise InvalidRequestError(f"stop_token_ids takes at most {MAX_STOP_TOKEN_IDS} ids", param="stop_token_ids")
    for t in p.stop_token_ids:
        _integer("stop_token_ids", t, 0, MAX_TOKEN_ID)
    _boolean("ignore_eos", p.ignore_eos)
    if p.max_tokens is not None:
        _integer("max_tokens", p.max_tokens, 0, MAX_TOKENS)
        if p.max_tokens == 0 and p.prompt_logprobs is None:
            raise InvalidRequestError("max_tokens may be 0 only when prompt logprobs are asked for", param="max_tokens")
    if p.logprobs is not None:
        _integer("logprobs", p.logprobs, 0, MAX_LOGPROBS)
    if p.prompt_logprobs is not None:
        _integer("prompt_logprobs", p.prompt_logprobs, 0, MAX_LOGPROBS)
    if p.logit_bias is not None:
        if not isinstance(p.logit_bias, dict) or len(p.logit_bias) > MAX_LOGIT_BIAS:
            raise InvalidRequestError(f"logit_bias takes at most {MAX_LOGIT_BIAS} entries", param="logit_bias")
        for token, bias in p.logit_bias.items():
            _integer("logit_bias", token, 0, MAX_TOKEN_ID)
            _number("logit_bias", bias, -100.0, 100.0)
    _boolean("skip_special_tokens", p.skip_special_tokens)
    _boolean("include_stop_str_in_output", p.include_stop_str_in_output)


def _integer(name: str, value: object, low: int, high: int) -> None:
    if not isinstance(value, int) or isinstance(value, bool) or not low <= value <= high:
        raise InvalidRequestError(f"{name} must be an integer from {low} to {high}, got {value!r}", param=name)


def _number(name: str, value: object, low: float, high: float) -> None:
    ok = isinstance(value, (int, float)) and not isinstance(value, bool)
    if not ok or not math.isfinite(value) or not low <= value <= high:  # type: ignore[arg-type,operator]
        raise InvalidRequestError(f"{name} must be a number from {low:g} to {high:g}, got {value!r}", param=name)


def _boolean(name: str, value: object) -> None:
    if not isinstance(value, bool):
        raise InvalidRequestError(f"{name} must be true or false, got {value!r}", param=name)
