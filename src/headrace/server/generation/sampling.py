"""Request fields → SamplingParams: defaults, what wins over what, and which fields only take a neutral value yet."""

from __future__ import annotations

from typing import Any

from headrace.core.errors import ContextLengthError, InvalidRequestError
from headrace.core.params import SamplingParams
from headrace.server.schemas.chat import ChatCompletionRequest
from headrace.server.schemas.common import GenerationRequest
from headrace.server.schemas.completions import CompletionRequest

# Fields of other servers that have no effect here at these values, and no meaning yet at others.
_NEUTRAL: dict[str, tuple[Any, ...]] = {
    "frequency_penalty": (0,),
    "presence_penalty": (0,),
    "repetition_penalty": (1,),
    "min_p": (0,),
    "min_tokens": (0,),
    "prompt_logprobs": (),
    "response_format": ({"type": "text"},),
    "structured_outputs": (),
    "suffix": ("",),
    "tool_choice": ("auto", "none"),
    "chat_template": (),
    "modalities": (["text"],),
    "audio": (),
    "functions": ([],),
    "function_call": ("auto", "none"),
    "moderation": (),
    "prediction": (),
    "reasoning_effort": (),
    "verbosity": (),
    "web_search_options": (),
}


def refuse_unsupported(body: Any) -> None:
    """Raise InvalidRequestError for a field whose value would have to change the output, and cannot yet."""
    for name, neutral in _NEUTRAL.items():
        value = getattr(body, name, None)
        if value is not None and value not in neutral:
            allowed = " or ".join(["null", *map(repr, neutral)])
            raise InvalidRequestError(
                f"{name} is not supported yet; leave it out or send {allowed}", param=name, code="unsupported_parameter"
            )
    if isinstance(body, GenerationRequest):
        _check_combinations(body)


def _check_combinations(body: GenerationRequest) -> None:
    if body.best_of is not None and body.best_of != (body.n or 1):
        raise InvalidRequestError(
            "best_of is not supported yet; leave it out or send the value of n",
            param="best_of",
            code="unsupported_parameter",
        )
    options = body.stream_options
    if options is not None and not body.stream:
        raise InvalidRequestError("stream_options is only allowed when stream is true", param="stream_options")
    if options is not None and options.continuous_usage_stats and not options.include_usage:
        raise InvalidRequestError(
            "continuous_usage_stats needs include_usage", param="stream_options.continuous_usage_stats"
        )
    if isinstance(body, ChatCompletionRequest) and body.top_logprobs is not None and not body.logprobs:
        raise InvalidRequestError("top_logprobs needs logprobs to be true", param="top_logprobs")
    if max_tokens_of(body) == 0:
        _check_no_output(body)
    if body.min_tokens is not None and body.min_tokens > (max_tokens_of(body) or body.min_tokens):
        raise InvalidRequestError("min_tokens is greater than max_tokens", param="min_tokens")


def _check_no_output(body: GenerationRequest) -> None:
    if not isinstance(body, CompletionRequest) or not body.echo:
        raise InvalidRequestError("max_tokens must be at least 1 (0 is for completions with echo)", param="max_tokens")
    if (body.n or 1) > 1:
        raise InvalidRequestError("n must be 1 when max_tokens is 0: there is nothing to sample", param="n")


def max_tokens_of(body: GenerationRequest) -> int | None:
    """The limit that was asked for; None is the rest of the context. `max_completion_tokens` wins."""
    if body.max_completion_tokens is not None:
        return body.max_completion_tokens
    return body.max_tokens if isinstance(body, (ChatCompletionRequest, CompletionRequest)) else None


def output_room(asked: int | None, num_prompt_tokens: int, context: int, *, param: str) -> int:
    """The max_tokens of one prompt. Raises ContextLengthError naming prompt, limit and the largest allowed.

    param: the prompt's field, blamed when there is no room for any output.
    """
    room = context - num_prompt_tokens
    if room < 0 or (room == 0 and asked != 0):
        raise ContextLengthError(
            f"the context of this model is {context} tokens, but the prompt has {num_prompt_tokens}, "
            "which leaves no room for output; shorten the prompt",
            param=param,
        )
    if asked is not None and asked > room:
        raise ContextLengthError(
            f"the context of this model is {context} tokens: a prompt of {num_prompt_tokens} and max_tokens {asked} "
            f"do not fit; the largest max_tokens for this prompt is {room}",
            param="max_tokens",
        )
    return room if asked is None else asked


def sampling_params(
    body: GenerationRequest, *, max_tokens: int, logprobs: int | None, prompt_logprobs: int | None
) -> SamplingParams:
    """The engine's parameters. Raises InvalidRequestError naming the field."""
    asked = {
        "n": body.n,
        "temperature": body.temperature,
        "top_p": body.top_p,
        "top_k": body.top_k,
        "seed": body.seed,
        "stop": body.stop,
        "stop_token_ids": body.stop_token_ids,
        "ignore_eos": body.ignore_eos,
        "logit_bias": logit_bias(body.logit_bias),
        "skip_special_tokens": body.skip_special_tokens,
        "include_stop_str_in_output": body.include_stop_str_in_output,
        "logprobs": logprobs,
        "prompt_logprobs": prompt_logprobs,
    }
    return SamplingParams(max_tokens=max_tokens, **{name: value for name, value in asked.items() if value is not None})


def logit_bias(asked: dict[str, float] | None) -> dict[int, float] | None:
    """JSON's text keys as token ids; the engine's front knows how many there are."""
    if not asked:
        return None
    found = {}
    for key, bias in asked.items():
        token_id = int(key) if key.isascii() and key.isdigit() and len(key) < 12 else -1
        if str(token_id) != key:
            raise InvalidRequestError(f"logit_bias: {key[:40]!r} is not a token id", param="logit_bias")
        found[token_id] = bias
    return found
