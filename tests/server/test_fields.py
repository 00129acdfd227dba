"""Fields of both APIs: ranges, neutral values, bookkeeping, nulls."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from headrace.server.schemas.chat import ChatCompletionRequest
from headrace.server.schemas.completions import CompletionRequest
from tests.server.support.client import Client, chat, complete

OUT_OF_RANGE: list[tuple[str, Any]] = [
    ("logit_bias", {"-1": 1}),
    ("logit_bias", {"259": 1}),
    ("logit_bias", {"a": 1}),
    ("logit_bias", {"01": 1}),
    ("logit_bias", {"1": 101}),
    ("logit_bias", {str(i): 1 for i in range(100_000)}),
    ("seed", 1 << 63),
    ("seed", -1),
    ("temperature", -1),
    ("temperature", 1e30),
    ("top_p", 0),
    ("top_p", 2),
    ("top_k", -2),
    ("top_k", 1 << 40),
    ("frequency_penalty", 100),
    ("presence_penalty", -100),
    ("repetition_penalty", 100),
    ("min_p", -1),
    ("min_tokens", 100),
    ("n", 0),
    ("n", 100_000_000),
    ("best_of", 100_000_000),
    ("prompt_logprobs", -1),
    ("stop", ""),
    ("stop", [""]),
    ("stop", ["x"] * 33),
    ("stop", ["x" * 1025]),
    ("stop_token_ids", [-1]),
    ("stop_token_ids", list(range(200))),
    ("priority", 1 << 40),
    ("cache_salt", ""),
    ("cache_salt", "x" * 300),
    ("metadata", {str(i): "x" for i in range(17)}),
    ("user", 5),
    ("store", "yes"),
]


@pytest.mark.parametrize("send", [complete, chat])
@pytest.mark.parametrize(("field", "value"), OUT_OF_RANGE)
def test_a_value_out_of_range_is_400_naming_the_field(send: Any, field: str, value: object) -> None:
    client = Client()
    answer = send(client, **{field: value})
    assert answer.status == 400 and answer.error["param"] == field
    assert not client.llm.engine.submitted


@pytest.mark.parametrize(
    "field", ["n_discard", "kv_transfer_params", "bootstrap_host", "mm_hashes", "data_parallel_rank"]
)
def test_internal_fields_of_other_servers_are_unknown(field: str) -> None:
    for send in (complete, chat):
        assert send(Client(), **{field: -1}).error["code"] == "unknown_field"


@pytest.mark.parametrize("value", [-1, 21, 10**9])
def test_logprobs_out_of_range_are_400(value: int) -> None:
    assert complete(Client(), logprobs=value).error["param"] == "logprobs"
    assert chat(Client(), logprobs=True, top_logprobs=value).error["param"] == "top_logprobs"


@pytest.mark.parametrize("send", [complete, chat])
@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("frequency_penalty", 0.5),
        ("presence_penalty", -0.5),
        ("repetition_penalty", 1.1),
        ("min_p", 0.1),
        ("min_tokens", 2),
        ("best_of", 2),
        ("prompt_logprobs", 1),
        ("structured_outputs", {"regex": "a"}),
        ("response_format", {"type": "json_object"}),
    ],
)
def test_what_has_no_meaning_yet_is_400_and_says_so(send: Any, field: str, value: object) -> None:
    error = send(Client(), **{field: value}).error
    assert error["param"] == field and "not supported yet" in error["message"]


@pytest.mark.parametrize("send", [complete, chat])
def test_neutral_values_are_accepted(send: Any) -> None:
    neutral = {
        "frequency_penalty": 0,
        "presence_penalty": 0.0,
        "repetition_penalty": 1,
        "min_p": 0,
        "min_tokens": 0,
        "n": 2,
        "best_of": 2,
        "top_k": -1,
        "top_p": 1,
        "logit_bias": {},
        "stop": [],
        "response_format": {"type": "text"},
    }
    assert send(Client(), **neutral).status == 200
    assert complete(Client(), suffix="").status == 200
    assert chat(Client(), modalities=["text"], functions=[], function_call="none").status == 200


@pytest.mark.parametrize("send", [complete, chat])
def test_bookkeeping_fields_are_accepted(send: Any) -> None:
    fields = {
        "user": "u",
        "store": True,
        "metadata": {"k": "v"},
        "service_tier": "auto",
        "safety_identifier": "s",
        "prompt_cache_key": "k",
        "prompt_cache_retention": "24h",
    }
    assert send(Client(), **fields).status == 200
    assert chat(Client(), parallel_tool_calls=False).status == 200


@pytest.mark.parametrize("send", [complete, chat])
def test_every_optional_field_may_be_null(send: Any) -> None:
    schema = CompletionRequest if send is complete else ChatCompletionRequest
    optional = [field.encode_name for field in msgspec.structs.fields(schema) if not field.required]
    assert len(optional) > 30
    assert send(Client(), **dict.fromkeys(optional)).status == 200


def test_every_field_the_openai_client_knows_is_known() -> None:
    from openai.types import completion_create_params
    from openai.types.chat import completion_create_params as chat_create_params

    for schema, params in (
        (CompletionRequest, completion_create_params.CompletionCreateParamsBase),
        (ChatCompletionRequest, chat_create_params.CompletionCreateParamsBase),
    ):
        known = {field.encode_name for field in msgspec.structs.fields(schema)}
        assert set(params.__annotations__) - known == set()


def test_sampling_fields_reach_the_engine() -> None:
    client = Client()
    complete(
        client, temperature=0.5, top_p=0.9, top_k=7, seed=3, logit_bias={"65": 5}, stop_token_ids=[7], ignore_eos=True
    )
    request = client.llm.engine.submitted[0]
    assert (request.temperature, request.top_p, request.top_k, request.seed) == (0.5, 0.9, 7, 3)
    assert request.logit_bias == {65: 5.0} and request.stop_token_ids == [7]


def test_a_huge_n_is_refused_at_once() -> None:
    import time

    client = Client()
    complete(client)
    start = time.perf_counter()
    for field in ("n", "best_of"):
        assert complete(client, **{field: 100_000_000}).status == 400
    assert time.perf_counter() - start < 1.0
