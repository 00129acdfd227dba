from __future__ import annotations

import copy
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.core.errors import InvalidRequestError
from headrace.text.messages import MAX_CONTENT_PARTS, MAX_MESSAGES, MAX_TOOL_CALLS, normalise_messages

USER = {"role": "user", "content": "x"}


def call(**function: Any) -> dict[str, Any]:
    return {"id": "c1", "type": "function", "function": {"name": "echo", "arguments": "{}", **function}}


def assistant(**fields: Any) -> list[dict[str, Any]]:
    return [USER, {"role": "assistant", **fields}]


def test_plain_messages_stay_as_they_are() -> None:
    messages = [
        {"role": "system", "content": "s"},
        {"role": "user", "content": "", "name": "ann"},
        {"role": "assistant", "content": "a"},
        {"role": "tool", "content": "t", "tool_call_id": "c1"},
    ]
    assert normalise_messages(messages) == messages


def test_text_parts_are_joined_with_a_newline() -> None:
    parts = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
    assert normalise_messages([{"role": "user", "content": parts}]) == [{"role": "user", "content": "a\nb"}]


def test_null_fields_say_nothing() -> None:
    message = {"role": "user", "content": "x", "name": None, "tool_calls": None, "tool_call_id": None, "audio": None}
    assert normalise_messages([message]) == [{"role": "user", "content": "x"}]


def test_developer_is_system() -> None:
    assert normalise_messages([{"role": "developer", "content": "s"}]) == [{"role": "system", "content": "s"}]


def test_an_assistant_may_have_null_content() -> None:
    assert normalise_messages(assistant(content=None))[1]["content"] == ""
    message = normalise_messages(assistant(content=None, tool_calls=[call()]))[1]
    assert message["content"] is None
    assert normalise_messages(assistant(tool_calls=[call()]))[1] == message


def test_tool_call_arguments_become_objects() -> None:
    calls = [call(arguments='{"a": {"b": [1, 2.5, null]}, "é": "x"}'), call(arguments=" "), call(arguments="")]
    normalised = normalise_messages(assistant(tool_calls=calls))[1]["tool_calls"]
    assert [c["function"]["arguments"] for c in normalised] == [{"a": {"b": [1, 2.5, None]}, "é": "x"}, {}, {}]
    assert normalised[0]["type"] == "function" and normalised[0]["id"] == "c1"


def test_an_answer_sent_back_as_history_is_taken() -> None:
    fields = {
        "content": "a",
        "refusal": None,
        "audio": None,
        "annotations": [],
        "function_call": None,
        "tool_calls": [],
    }
    assert normalise_messages(assistant(**fields))[1] == {"role": "assistant", "content": "a"}
    streamed = {**call(), "index": 0}
    assert normalise_messages(assistant(tool_calls=[streamed]))[1]["tool_calls"] == [
        {"id": "c1", "type": "function", "function": {"name": "echo", "arguments": {}}}
    ]


def test_refusals_and_reasoning_are_kept() -> None:
    assert normalise_messages(assistant(refusal="no"))[1]["content"] == "no"
    parts = [{"type": "refusal", "refusal": "no"}]
    assert normalise_messages(assistant(content=parts))[1]["content"] == "no"
    for name in ("reasoning_content", "reasoning"):
        message = normalise_messages(assistant(content="a", **{name: "why"}))[1]
        assert message["reasoning_content"] == "why" and "reasoning" not in message


def test_checked_messages_pass_again_and_the_input_is_left_alone() -> None:
    messages = assistant(tool_calls=[call(arguments='{"a": 1}')])
    before = copy.deepcopy(messages)
    once = normalise_messages(messages)
    assert normalise_messages(once) is once
    assert messages == before


@pytest.mark.parametrize(
    ("messages", "path"),
    [
        (None, "messages"),
        ("hi", "messages"),
        ({"role": "user"}, "messages"),
        ([], "messages"),
        ([USER] * (MAX_MESSAGES + 1), "messages"),
        (["hi"], "messages[0]"),
        ([USER, None], "messages[1]"),
        ([{"content": "x"}], "messages[0].role"),
        ([{"role": 1, "content": "x"}], "messages[0].role"),
        ([{"role": "User", "content": "x"}], "messages[0].role"),
        ([{"role": "user"}], "messages[0].content"),
        ([{"role": "user", "content": None}], "messages[0].content"),
        ([{"role": "user", "content": 3}], "messages[0].content"),
        ([{"role": "user", "content": {}}], "messages[0].content"),
        ([{"role": "user", "content": []}], "messages[0].content"),
        (
            [{"role": "user", "content": [{"type": "text", "text": ""}] * (MAX_CONTENT_PARTS + 1)}],
            "messages[0].content",
        ),
        ([{"role": "user", "content": ["a"]}], "messages[0].content[0]"),
        ([{"role": "user", "content": [{"text": "a"}]}], "messages[0].content[0].type"),
        ([{"role": "user", "content": [{"type": "image_url", "image_url": {}}]}], "messages[0].content[0].type"),
        ([{"role": "user", "content": [{"type": "refusal", "refusal": "x"}]}], "messages[0].content[0].type"),
        ([{"role": "user", "content": [{"type": []}]}], "messages[0].content[0].type"),
        ([{"role": "user", "content": [{"type": "text"}]}], "messages[0].content[0].text"),
        ([{"role": "user", "content": [{"type": "text", "text": None}]}], "messages[0].content[0].text"),
        ([{"role": "user", "content": [{"type": "text", "text": "a", "txt": 1}]}], "messages[0].content[0].txt"),
        ([{"role": "user", "content": "x", "contents": "y"}], "messages[0].contents"),
        ([{"role": "user", "content": "x", "tool_calls": []}], "messages[0].tool_calls"),
        ([{"role": "user", "content": "x", "name": ""}], "messages[0].name"),
        ([{"role": "user", "content": "x", "name": 3}], "messages[0].name"),
        ([{"role": "user", "content": "x", 3: "y"}], "messages[0].3"),
        ([{"role": "tool", "content": "x"}], "messages[0].tool_call_id"),
        ([{"role": "tool", "content": None, "tool_call_id": "c"}], "messages[0].content"),
        (assistant(), "messages[1].content"),
        (assistant(content="x", audio={"id": "a"}), "messages[1].audio"),
        (assistant(content="x", function_call={"name": "f"}), "messages[1].function_call"),
        (assistant(content="x", reasoning=3), "messages[1].reasoning"),
        (assistant(refusal=3), "messages[1].refusal"),
        (assistant(tool_calls={}), "messages[1].tool_calls"),
        (assistant(tool_calls=[call()] * (MAX_TOOL_CALLS + 1)), "messages[1].tool_calls"),
        (assistant(tool_calls=["f"]), "messages[1].tool_calls[0]"),
        (assistant(tool_calls=[{**call(), "type": "custom"}]), "messages[1].tool_calls[0].type"),
        (assistant(tool_calls=[{"type": "function", "function": {"name": "f"}}]), "messages[1].tool_calls[0].id"),
        (assistant(tool_calls=[{"id": "c", "type": "function"}]), "messages[1].tool_calls[0].function"),
        (assistant(tool_calls=[{**call(), "functions": 1}]), "messages[1].tool_calls[0].functions"),
        (assistant(tool_calls=[call(name=None)]), "messages[1].tool_calls[0].function.name"),
        (assistant(tool_calls=[call(name="n" * 257)]), "messages[1].tool_calls[0].function.name"),
        (assistant(tool_calls=[call(args="{}")]), "messages[1].tool_calls[0].function.args"),
        (assistant(tool_calls=[call(), call(arguments="{")]), "messages[1].tool_calls[1].function.arguments"),
    ],
)
def test_an_error_names_the_path(messages: Any, path: str) -> None:
    for _ in range(3):
        with pytest.raises(InvalidRequestError) as caught:
            normalise_messages(messages)
        assert caught.value.param == path
        assert caught.value.message.startswith(path)
        assert len(caught.value.message) < 400


@pytest.mark.parametrize(
    "arguments",
    ["{", "[]", "3", "null", '"{}"', '{"a": NaN}', '{"a": Infinity}', "{'a': 1}", '{"a": 1}}', "[" * 100_000,
     '{"a":' * 100_000, '{"a": ' + "9" * 10_000 + "}", {}, None, 3, " " * (1 << 20) + "{}"],
)  # fmt: skip
def test_arguments_must_be_a_json_object_in_a_string(arguments: Any) -> None:
    with pytest.raises(InvalidRequestError) as caught:
        normalise_messages(assistant(tool_calls=[call(arguments=arguments)]))
    assert caught.value.param == "messages[1].tool_calls[0].function.arguments"


def test_a_misspelled_field_is_guessed() -> None:
    with pytest.raises(InvalidRequestError, match="did you mean 'content'"):
        normalise_messages([{"role": "user", "contents": "x"}])


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(["role", "content", "type", "text", "tool_calls", "function", "arguments", "id", "name"]),
            inner | st.sampled_from(["user", "assistant", "tool", "text", "function", "{}", "{"]),
            max_size=5,
        )
    ),
    max_leaves=12,
)


@given(JSON)
def test_whatever_json_comes_is_answered_or_refused(messages: Any) -> None:
    try:
        normalised = normalise_messages(messages)
    except InvalidRequestError as error:
        path = error.param or ""
    else:
        path = "messages"
        assert all(isinstance(m["content"], str) or m.get("tool_calls") for m in normalised)
    assert path.startswith("messages")
