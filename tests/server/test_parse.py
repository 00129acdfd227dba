"""Bytes → schema: what is refused, fast, and which field the error names."""

from __future__ import annotations

import json
import time
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.core.errors import InvalidRequestError
from headrace.server.limits import Limits
from headrace.server.parse import field_names, parse
from headrace.server.schemas.chat import ChatCompletionRequest
from headrace.server.schemas.completions import CompletionRequest

LIMITS = Limits()


def refusal(body: bytes, schema: type = CompletionRequest, limits: Limits = LIMITS) -> InvalidRequestError:
    with pytest.raises(InvalidRequestError) as caught:
        parse(body, schema, limits)
    return caught.value


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{",
        b"nonsense",
        b"[1]",
        b"null",
        b'"text"',
        b'{"prompt":"x"} x',
        b'{"prompt":"x","temperature":NaN}',
        b'{"prompt":"x","temperature":Infinity}',
        b'{"prompt":"x","temperature":1e400}',
        b'{"prompt":"x","structured_outputs":{"a":-1e400}}',
        b'{"prompt":"\xff"}',
        b'{"prompt":"\\ud800"}',
        b'{"prompt":"x","structured_outputs":{"a":' + b"9" * 5000 + b"}}",
    ],
)
def test_what_is_no_json_object_is_refused(body: bytes) -> None:
    assert refusal(body).status == 400


@pytest.mark.parametrize("opening", [b"[", b'{"a":', b'[{"a":'])
def test_deep_nesting_is_refused_without_recursion(opening: bytes) -> None:
    error = refusal(b'{"prompt":"x","structured_outputs":' + opening * 100_000)
    assert error.code == "json_too_deep"


def test_brackets_inside_strings_are_no_nesting() -> None:
    text = '[{"\\' * 2000 + '"'
    assert parse(json.dumps({"prompt": text}).encode(), CompletionRequest, LIMITS).prompt == text


@given(st.text(alphabet='[]{}"\\ax ', max_size=60), st.integers(1, 8))
def test_the_depth_scan_agrees_with_the_structure(text: str, depth: int) -> None:
    value: Any = text
    for _ in range(depth):
        value = [value]
    body = json.dumps({"prompt": "x", "structured_outputs": {text: value}}).encode()
    parse(body, CompletionRequest, Limits(max_json_depth=depth + 2))
    assert refusal(body, limits=Limits(max_json_depth=depth + 1)).code == "json_too_deep"


def test_too_many_containers_are_refused() -> None:
    body = b'{"prompt":[' + b"[1]," * 300_000 + b"[1]]}"
    assert refusal(body).code == "json_too_large"


@pytest.mark.parametrize("body", [b'{"prompt":"a","prompt":"b"}', b'{"prompt":"a","logit_bias":{"1":1,"1":2}}'])
def test_a_key_twice_in_one_object_is_refused(body: bytes) -> None:
    assert "twice" in refusal(body).message


def test_the_same_key_in_two_objects_is_fine() -> None:
    body = b'{"prompt":"a","structured_outputs":{"a":{"b":1},"c":{"b":2}}}'
    assert parse(body, CompletionRequest, LIMITS).structured_outputs == {"a": {"b": 1}, "c": {"b": 2}}


def test_a_huge_key_is_refused_with_a_short_error() -> None:
    for place in (b'{"prompt":"a","%s":1}', b'{"prompt":"a","metadata":{"%s":"v"}}'):
        error = refusal(place.replace(b"%s", b"k" * 10_000_000))
        assert len(error.message) < 1000 and len(error.param or "") < 300


def test_a_million_strings_are_handled_in_bounded_time() -> None:
    body = json.dumps({"prompt": ["x"] * 1_000_000}).encode()
    start = time.monotonic()
    parse(body, CompletionRequest, LIMITS)
    assert time.monotonic() - start < 5


def test_an_unknown_field_names_the_nearest_one() -> None:
    error = refusal(b'{"prompt":"a","max_token":3}')
    assert error.param == "max_token" and "'max_tokens'" in error.message and error.code == "unknown_field"


@pytest.mark.parametrize(
    ("body", "param", "nearest"),
    [
        ({"stream_options": {"include_usag": True}}, "stream_options.include_usag", "include_usage"),
        ({"messages": [{"role": "user", "contnt": "x"}]}, "messages[0].contnt", "content"),
        (
            {"messages": [{"role": "user", "content": [{"type": "text", "txt": "a"}]}]},
            "messages[0].content[0].txt",
            "text",
        ),
        (
            {"tools": [{"type": "function", "function": {"name": "f", "paramters": {}}}]},
            "tools[0].function.paramters",
            "parameters",
        ),
    ],
)
def test_unknown_fields_inside_objects_are_named_by_path(body: dict[str, Any], param: str, nearest: str) -> None:
    body.setdefault("messages", [{"role": "user", "content": "x"}])
    error = refusal(json.dumps(body).encode(), ChatCompletionRequest)
    assert error.param == param and repr(nearest) in error.message


@pytest.mark.parametrize(
    ("field", "value", "param"),
    [
        ("max_tokens", "5", "max_tokens"),
        ("n", 1.5, "n"),
        ("n", True, "n"),
        ("stream", 1, "stream"),
        ("logit_bias", [1], "logit_bias"),
        ("logit_bias", {"1": "x"}, "logit_bias"),
        ("stop", ["a", 1], "stop"),
        ("prompt", {"a": 1}, "prompt"),
        ("prompt", [-1], "prompt"),
        ("prompt", [[1, "a"]], "prompt"),
        ("stream_options", {"include_usage": "yes"}, "stream_options.include_usage"),
    ],
)
def test_a_wrong_type_names_its_field(field: str, value: object, param: str) -> None:
    assert refusal(json.dumps({"prompt": "x"} | {field: value}).encode()).param == param


def test_a_missing_field_is_named() -> None:
    assert refusal(b"{}").param == "prompt"
    assert refusal(b"{}", ChatCompletionRequest).param == "messages"


def test_field_names_follow_paths_through_lists_and_objects() -> None:
    assert "arguments" in field_names(ChatCompletionRequest, "messages[0].tool_calls[3].function")
    assert field_names(ChatCompletionRequest, "messages[0].role") == []


@given(st.binary(max_size=200))
def test_no_bytes_raise_anything_but_invalid_request(body: bytes) -> None:
    assert refusal(body, ChatCompletionRequest).message


def test_every_number_of_a_request_is_bounded() -> None:
    from msgspec import inspect as types

    def numbers(kind: types.Type, path: str) -> list[str]:
        if isinstance(kind, types.IntType | types.FloatType):
            return [] if kind.le is not None and (kind.ge is not None or kind.gt is not None) else [path]
        if isinstance(kind, types.Metadata):
            return numbers(kind.type, path)
        if isinstance(kind, types.UnionType):
            return [found for inner in kind.types for found in numbers(inner, path)]
        if isinstance(kind, types.ListType):
            return numbers(kind.item_type, path + "[]")
        if isinstance(kind, types.DictType):
            return numbers(kind.value_type, path + "{}")
        if isinstance(kind, types.StructType):
            assert kind.forbid_unknown_fields, path
            return [found for f in kind.fields for found in numbers(f.type, f"{path}.{f.encode_name}")]
        return []

    from headrace.server.schemas.service import DetokenizeRequest, TokenizeRequest

    for schema in (CompletionRequest, ChatCompletionRequest, TokenizeRequest, DetokenizeRequest):
        assert numbers(types.type_info(schema), schema.__name__) == []
