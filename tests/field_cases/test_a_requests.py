"""Field cases F01–F10 and F12–F14: requests, responses, streaming."""

from __future__ import annotations

from typing import Any

import pytest

from tests.server.support.real import CONTEXT, RealServer

HI = [{"role": "user", "content": "Hi"}]
USAGE = {"include_usage": True}
TOOL = {"type": "function", "function": {"name": "echo", "parameters": {"type": "object"}}}


def chat_stream(server: RealServer, **body: Any) -> list[Any]:
    default = {"model": "tiny", "messages": HI, "max_tokens": 4, "temperature": 0}
    return list(server.stream("/v1/chat/completions", default | body))


def test_f01_usage_chunk(server: RealServer) -> None:
    chunks = chat_stream(server, stream_options=USAGE)
    assert [bool(chunk["choices"]) for chunk in chunks] == [True] * (len(chunks) - 1) + [False]
    usage = chunks[-1]["usage"]
    assert usage["prompt_tokens"] + usage["completion_tokens"] == usage["total_tokens"]
    assert all(chunk.get("usage") is None for chunk in chunks[:-1])


def test_f02_empty_stream_options(server: RealServer) -> None:
    for options in ({}, None):
        assert not any(chunk.get("usage") for chunk in chat_stream(server, stream_options=options))
    assert server.chat(stream=False, stream_options=USAGE).status_code == 400


@pytest.mark.parametrize("max_tokens", [1, 2, 50])
def test_f03_finish_reason_always_set(server: RealServer, max_tokens: int) -> None:
    chunks = chat_stream(server, stream_options=USAGE, tools=[TOOL], max_tokens=max_tokens)
    reasons = [choice["finish_reason"] for chunk in chunks for choice in chunk["choices"]]
    assert reasons[-1] in ("stop", "length", "tool_calls") and not any(reasons[:-1])


def test_f04_stream_equals_non_stream(server: RealServer) -> None:
    for number in range(20):
        body = {"messages": [{"role": "user", "content": f"Prompt {number} of twenty"}], "seed": 1, "max_tokens": 24}
        whole = server.chat(**body).json()
        chunks = chat_stream(server, **body, stream_options=USAGE)
        choices = [choice for chunk in chunks for choice in chunk["choices"]]
        text = "".join(choice["delta"].get("content", "") for choice in choices)
        assert text.encode() == whole["choices"][0]["message"]["content"].encode()
        assert choices[-1]["finish_reason"] == whole["choices"][0]["finish_reason"]
        usage = chunks[-1]["usage"]
        for name in ("prompt_tokens", "completion_tokens", "total_tokens"):
            assert usage[name] == whole["usage"][name]


def test_f05_several_choices_streaming(server: RealServer) -> None:
    body = {"model": "tiny", "prompt": "A", "n": 3, "max_tokens": 5, "temperature": 5, "seed": 7, "ignore_eos": True}

    def run() -> dict[int, list[int]]:
        chunks = list(server.stream("/v1/completions", body | {"stream_options": USAGE, "return_token_ids": True}))
        found: dict[int, list[int]] = {0: [], 1: [], 2: []}
        finished = set()
        for choice in (choice for chunk in chunks for choice in chunk["choices"]):
            found[choice["index"]] += choice["token_ids"]
            if choice["finish_reason"]:
                finished.add(choice["index"])
        assert finished == {0, 1, 2}
        assert chunks[-1]["usage"]["completion_tokens"] == sum(map(len, found.values())) == 15
        return found

    first = run()
    assert first == run() and len(set(map(tuple, first.values()))) > 1


@pytest.mark.parametrize("prompt", ["", [], [""], [-1], [999999999], None, "missing"])
def test_f06_impossible_prompts(server: RealServer, prompt: object) -> None:
    answer = server.complete() if prompt == "missing" else server.complete(prompt=prompt)
    assert answer.status_code == 400 and answer.json()["error"]["param"] == "prompt"


@pytest.mark.parametrize(("prompt", "num_choices"), [(["a", "b"], 2), ([1, 2, 3], 1), ([[1], [2, 3]], 2)])
def test_f06_valid_lists(server: RealServer, prompt: list[Any], num_choices: int) -> None:
    choices = server.complete(prompt=prompt, return_token_ids=True).json()["choices"]
    assert [choice["index"] for choice in choices] == list(range(num_choices))
    if isinstance(prompt[0], list):
        assert [choice["prompt_token_ids"] for choice in choices] == prompt


def test_f07_max_tokens_edges(server: RealServer) -> None:
    for value in (0, -1, "5"):
        answer = server.complete(prompt="x", max_tokens=value)
        assert answer.status_code == 400 and answer.json()["error"]["param"] == "max_tokens"
    error = server.complete(prompt=[5, 6, 7], max_tokens=10**9).json()["error"]
    assert {"3", str(CONTEXT), str(CONTEXT - 3)} <= set(error["message"].replace(":", "").replace(";", "").split())
    answer = server.complete(prompt=[5] * (CONTEXT - 9), max_tokens=None, ignore_eos=True)
    assert answer.json()["usage"]["completion_tokens"] == 9
    for fields in ({"max_tokens": None}, {"max_tokens": 50}):
        body = server.chat(max_completion_tokens=2, ignore_eos=True, **fields).json()
        assert body["usage"]["completion_tokens"] == 2


def test_f08_context_overflow(server: RealServer) -> None:
    length = server.get("/v1/models").json()["data"][0]["max_model_len"]
    assert length == CONTEXT
    assert server.complete(prompt=[5] * (length - 1), max_tokens=1).json()["usage"]["completion_tokens"] == 1
    for too_long in (length, length + 1):
        answer = server.complete(prompt=[5] * too_long, max_tokens=1)
        assert answer.status_code == 400 and answer.json()["error"]["code"] == "context_length_exceeded"


def test_f09_unknown_field_and_wrong_model(server: RealServer) -> None:
    error = server.complete(prompt="x", max_token=3).json()["error"]
    assert error["param"] == "max_token" and "max_tokens" in error["message"]
    assert "max_tokens" in server.chat(max_token=3).json()["error"]["message"]
    assert "prompt" in server.post("/tokenize", {"promt": "x"}).json()["error"]["message"]
    assert "tokens" in server.post("/detokenize", {"token": [1]}).json()["error"]["message"]
    for answer in (server.complete(prompt="x", model="other"), server.chat(model="other")):
        assert answer.status_code == 404 and answer.json()["error"]["code"] == "model_not_found"


def test_f10_logprobs_of_chat(server: RealServer) -> None:
    body = server.chat(logprobs=True, top_logprobs=3, max_tokens=12, ignore_eos=True).json()
    content = body["choices"][0]["logprobs"]["content"]
    assert len(content) == body["usage"]["completion_tokens"] == 12
    text = b"".join(bytes(entry["bytes"] or []) for entry in content).decode("utf-8", "replace")
    assert text == body["choices"][0]["message"]["content"]
    for entry in content:
        assert entry["logprob"] <= 0 and entry["token"] in [top["token"] for top in entry["top_logprobs"]]
        assert entry["logprob"] == max(top["logprob"] for top in entry["top_logprobs"])


def test_f10_logprobs_of_completions(server: RealServer) -> None:
    choice = server.complete(prompt="one two", logprobs=3, max_tokens=6, ignore_eos=True).json()["choices"][0]
    logprobs = choice["logprobs"]
    assert {len(values) for values in logprobs.values()} == {6}
    for token, value, top in zip(*(logprobs[k] for k in ("tokens", "token_logprobs", "top_logprobs")), strict=True):
        assert value <= 0 and top[token] == value and len(top) == 3


def test_f10_echo_scores_like_generation(server: RealServer) -> None:
    prompt = server.post("/tokenize", {"prompt": "The rain in Spain stays mainly in the plain"}).json()["tokens"]
    made = server.complete(prompt=prompt, logprobs=1, max_tokens=20, return_token_ids=True, ignore_eos=True).json()
    choice = made["choices"][0]
    body = {"prompt": prompt + choice["token_ids"], "logprobs": 1, "echo": True, "max_tokens": 0}
    echo = server.complete(**body).json()
    scored = echo["choices"][0]["logprobs"]
    assert echo["usage"]["completion_tokens"] == 0
    assert scored["token_logprobs"][0] is None and scored["top_logprobs"][0] is None
    assert scored["token_logprobs"][len(prompt) :] == choice["logprobs"]["token_logprobs"]
    assert scored["top_logprobs"][len(prompt) :] == choice["logprobs"]["top_logprobs"]


def test_f10_what_lm_eval_computes(server: RealServer) -> None:
    """The request and the arithmetic of lm-eval's `local-completions` loglikelihood."""
    context, continuation = [20, 30, 40, 50], [60, 70, 80]
    rows = [context + continuation, [*context, 61]]
    body = {"prompt": rows, "echo": True, "logprobs": 1, "max_tokens": 1, "temperature": 0, "seed": 1234}
    choices = sorted(server.complete(**body).json()["choices"], key=lambda choice: choice["index"])
    for choice, row in zip(choices, rows, strict=True):
        logprobs = choice["logprobs"]["token_logprobs"]
        assert len(logprobs) == len(row) + 1 and logprobs[0] is None
        scored = logprobs[len(context) : -1]
        tops = [max(top.values()) for top in choice["logprobs"]["top_logprobs"][len(context) : -1]]
        assert len(scored) == len(row) - len(context) and sum(scored) < 0
        assert all(value <= top for value, top in zip(scored, tops, strict=True))


def test_f12_malformed_history_arguments(server: RealServer) -> None:
    call = {"id": "c1", "type": "function", "function": {"name": "echo", "arguments": "{"}}
    history = [
        {"role": "user", "content": "x"},
        {"role": "assistant", "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "c1", "content": "y"},
    ]
    for _ in range(3):
        answer = server.chat(messages=history)
        assert answer.status_code == 400
        assert answer.json()["error"]["param"] == "messages[1].tool_calls[0].function.arguments"


def test_f13_content_parts(server: RealServer) -> None:
    def ids(content: object) -> list[int]:
        answer = server.post("/tokenize", {"messages": [{"role": "user", "content": content}]})
        return list(answer.json()["tokens"])

    parts = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
    assert ids(parts) == ids("a\nb") and ids("") != ids("a")
    call = {"id": "c1", "type": "function", "function": {"name": "echo", "arguments": "{}"}}
    history = [
        {"role": "user", "content": ""},
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "c1", "content": "y"},
    ]
    assert server.chat(messages=history).status_code == 200
    answer = server.chat(messages=[{"role": "user", "content": [{"type": "hologram"}]}])
    assert answer.status_code == 400 and answer.json()["error"]["param"] == "messages[0].content[0].type"


def test_f14_chat_equals_completion(server: RealServer) -> None:
    messages = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "What is a headrace?"}]
    ids = server.post("/tokenize", {"messages": messages}).json()["tokens"]
    completed = server.complete(prompt=ids, max_tokens=24, logprobs=0).json()
    answered = server.chat(messages=messages, max_tokens=24, logprobs=True).json()
    assert completed["choices"][0]["text"] == answered["choices"][0]["message"]["content"]
    assert completed["usage"]["prompt_tokens"] == answered["usage"]["prompt_tokens"] == len(ids)
    assert completed["choices"][0]["logprobs"]["token_logprobs"] == [
        entry["logprob"] for entry in answered["choices"][0]["logprobs"]["content"]
    ]
