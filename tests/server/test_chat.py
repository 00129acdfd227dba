"""`/v1/chat/completions`: messages, templates, content, logprobs."""

from __future__ import annotations

from typing import Any

import pytest

from headrace.text.byte_tokenizer import CHAT_TEMPLATE
from tests.server.support.client import Client, chat
from tests.server.support.fakes import END_OF_TURN, FakeLLM

TOOL = {"type": "function", "function": {"name": "f", "description": "d", "parameters": {"type": "object"}}}
TOOLS_TEMPLATE = "{% if tools %}{{ tools | tojson }}{% endif %}" + CHAT_TEMPLATE
CALL = {"id": "c1", "type": "function", "function": {"name": "echo", "arguments": "{}"}}


def prompt_of(client: Client) -> str:
    """What the last request's prompt was rendered to."""
    return str(client.llm.tokenizer.decode(client.llm.engine.submitted[-1].prompt_token_ids, skip_special_tokens=False))


def test_a_conversation_is_answered() -> None:
    body = chat(Client(), max_tokens=6).json
    assert body["object"] == "chat.completion" and body["id"].startswith("chatcmpl-")
    choice = body["choices"][0]
    assert choice["message"] == {"role": "assistant", "content": "user\n", "refusal": None}
    assert choice["finish_reason"] == "length" and choice["logprobs"] is None
    assert body["usage"]["prompt_tokens"] + 6 == body["usage"]["total_tokens"]


def test_the_template_makes_the_prompt() -> None:
    client = Client()
    messages = [{"role": "system", "content": "S"}, {"role": "user", "content": "U"}]
    chat(client, messages=messages)
    assert prompt_of(client) == (
        "<|im_start|>system\nS<|im_end|>\n<|im_start|>user\nU<|im_end|>\n<|im_start|>assistant\n"
    )
    chat(client, messages=messages, add_generation_prompt=False)
    assert prompt_of(client).endswith("U<|im_end|>\n")


def test_the_last_message_can_be_continued() -> None:
    client = Client()
    answer = chat(client, messages=[{"role": "assistant", "content": "Once"}], continue_final_message=True)
    assert answer.status == 200 and prompt_of(client).endswith("Once")


def test_text_parts_are_joined_with_newlines() -> None:
    client = Client()
    parts = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
    chat(client, messages=[{"role": "user", "content": parts}])
    assert "user\na\nb<|im_end|>" in prompt_of(client)


def test_content_may_be_null_beside_tool_calls_and_empty() -> None:
    history: list[dict[str, Any]] = [
        {"role": "user", "content": ""},
        {"role": "assistant", "content": None, "tool_calls": [CALL]},
        {"role": "tool", "tool_call_id": "c1", "content": "y"},
    ]
    assert chat(Client(), messages=history).status == 200


@pytest.mark.parametrize(
    ("content", "param"),
    [
        ([{"type": "image_url", "image_url": {"url": "http://127.0.0.1:1/"}}], "messages[0].content[0].type"),
        ([{"type": "nonsense"}], "messages[0].content[0].type"),
        ([{"text": "a"}], "messages[0].content[0].type"),
        ([], "messages[0].content"),
        (5, "messages[0].content"),
        (None, "messages[0].content"),
    ],
)
def test_other_content_is_400_naming_the_part(content: object, param: str) -> None:
    answer = chat(Client(), messages=[{"role": "user", "content": content}])
    assert answer.status == 400 and answer.error["param"] == param


@pytest.mark.parametrize("arguments", ["{", "[]", "nonsense", '{"a":NaN}'])
def test_malformed_arguments_in_the_history_are_400(arguments: str) -> None:
    call = {"id": "c1", "type": "function", "function": {"name": "echo", "arguments": arguments}}
    history = [
        {"role": "user", "content": "x"},
        {"role": "assistant", "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "c1", "content": "y"},
    ]
    for _ in range(3):
        answer = chat(Client(), messages=history)
        assert answer.status == 400
        assert answer.error["param"] == "messages[1].tool_calls[0].function.arguments"


@pytest.mark.parametrize("role", ["usr", "", "function"])
def test_an_unknown_role_is_400(role: str) -> None:
    assert chat(Client(), messages=[{"role": role, "content": "x"}]).error["param"] == "messages[0].role"


@pytest.mark.parametrize("messages", [[], None, "x", [1], [{}]])
def test_messages_must_be_a_list_of_messages(messages: object) -> None:
    answer = chat(Client(), messages=messages)
    assert answer.status == 400 and answer.error["param"].startswith("messages")


def test_our_own_answer_can_be_sent_back() -> None:
    client = Client()
    message = chat(client).json["choices"][0]["message"]
    echoed = message | {"annotations": [], "audio": None, "function_call": None, "tool_calls": None}
    messages = [{"role": "user", "content": "Hi"}, echoed, {"role": "user", "content": "go on"}]
    assert chat(client, messages=messages).status == 200


def test_tools_are_rendered_by_the_template_only() -> None:
    client = Client(FakeLLM(chat_template=TOOLS_TEMPLATE))
    for choice in ("auto", None):
        answer = chat(client, tools=[TOOL], tool_choice=choice, parallel_tool_calls=True)
        assert answer.status == 200 and '"name": "f"' in prompt_of(client)
    chat(client, tools=[TOOL], tool_choice="none")
    assert '"name": "f"' not in prompt_of(client)


@pytest.mark.parametrize("choice", ["required", {"type": "function", "function": {"name": "f"}}])
def test_forcing_a_tool_is_not_supported_yet(choice: object) -> None:
    answer = chat(Client(), tools=[TOOL], tool_choice=choice)
    assert (
        answer.status == 400 and answer.error["param"] == "tool_choice" and "not supported yet" in answer.body.decode()
    )


@pytest.mark.parametrize(
    "tool", [{"type": "strnig", "function": {"name": "f"}}, {"type": "function"}, {"type": "function", "function": {}}]
)
def test_a_malformed_tool_is_400(tool: dict[str, Any]) -> None:
    assert chat(Client(), tools=[tool]).error["param"].startswith("tools[0]")


def test_a_response_format_other_than_text_is_400() -> None:
    assert chat(Client(), response_format={"type": "text"}).status == 200
    for kind in ("json_object", "json_schema", "nonsense"):
        assert chat(Client(), response_format={"type": kind}).error["param"] == "response_format"


def test_template_arguments_reach_the_template_but_not_its_own_names() -> None:
    client = Client(FakeLLM(chat_template="{{ flag }}" + CHAT_TEMPLATE))
    chat(client, chat_template_kwargs={"flag": "on"})
    assert prompt_of(client).startswith("on<|im_start|>")
    for name in ("messages", "tools", "add_generation_prompt", "bos_token", "continue_final_message", "self", "a b"):
        answer = chat(client, chat_template_kwargs={name: []})
        assert answer.status == 400 and answer.error["param"] == f"chat_template_kwargs.{name}"


def test_a_template_that_fails_ends_its_request_only() -> None:
    client = Client(FakeLLM(chat_template="{{ raise_exception('no') if messages | length > 1 }}" + CHAT_TEMPLATE))
    two = [{"role": "user", "content": "a"}, {"role": "user", "content": "b"}]
    assert chat(client, messages=two).status == 400
    assert chat(client).status == 200


def test_a_model_without_a_template_says_so() -> None:
    error = chat(Client(FakeLLM(chat_template=None))).error
    assert error["param"] == "messages" and "--chat-template" in error["message"]


def test_logprobs_have_bytes_that_join_to_the_text() -> None:
    messages = [{"role": "user", "content": "é"}]
    answer = chat(Client(), messages=messages, max_tokens=8, logprobs=True, top_logprobs=3).json
    choice = answer["choices"][0]
    content = choice["logprobs"]["content"]
    assert len(content) == answer["usage"]["completion_tokens"] == 8
    assert b"".join(bytes(entry["bytes"] or []) for entry in content).decode() == choice["message"]["content"]
    for entry in content:
        assert entry["logprob"] <= 0 and len(entry["top_logprobs"]) == 3
        assert entry["token"] in [top["token"] for top in entry["top_logprobs"]]


def test_special_tokens_have_no_bytes_unless_they_are_text() -> None:
    entry = chat(Client(), logprobs=True, max_tokens=1).json["choices"][0]["logprobs"]["content"][0]
    assert entry["token"] == "<|im_start|>" and entry["bytes"] is None and entry["top_logprobs"] == []
    answer = chat(Client(), logprobs=True, max_tokens=1, skip_special_tokens=False).json["choices"][0]
    assert answer["message"]["content"] == "<|im_start|>"
    assert bytes(answer["logprobs"]["content"][0]["bytes"]) == b"<|im_start|>"


def test_top_logprobs_need_logprobs() -> None:
    assert chat(Client(), top_logprobs=2).error["param"] == "top_logprobs"


def test_chat_equals_completion_of_the_tokenized_conversation() -> None:
    client = Client()
    messages = [{"role": "user", "content": "What is the code?"}]
    ids = client.post("/tokenize", {"messages": messages}).json["tokens"]
    body = {"prompt": ids, "max_tokens": 12, "temperature": 0}
    completed = client.post("/v1/completions", body).json
    answered = chat(client, messages=messages, max_tokens=12).json
    assert completed["choices"][0]["text"] == answered["choices"][0]["message"]["content"]
    assert completed["usage"]["prompt_tokens"] == answered["usage"]["prompt_tokens"] == len(ids)


def test_max_tokens_defaults_to_the_rest_of_the_context() -> None:
    client = Client(FakeLLM(max_model_len=64))
    answer = client.post("/v1/chat/completions", {"messages": [{"role": "user", "content": "Hi"}], "temperature": 0,
                                                  "ignore_eos": True})  # fmt: skip
    assert answer.json["usage"]["total_tokens"] == 64
    assert chat(client, max_tokens=0).error["param"] == "max_tokens"


def test_token_ids_come_back_on_request() -> None:
    body = chat(Client(), return_token_ids=True, max_tokens=2).json
    assert body["choices"][0]["token_ids"] == body["prompt_token_ids"][:2]
    assert END_OF_TURN in body["prompt_token_ids"]
