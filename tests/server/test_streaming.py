"""Streams: usage chunks, finish reasons, equality with whole answers, and clients that leave."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.server.limits import Limits
from tests.server.support.client import Answer, Client, chat, complete
from tests.server.support.fakes import FakeEngine, FakeLLM

USAGE = {"include_usage": True}


def joined(answer: Answer) -> dict[int, str]:
    """The text of each choice of a stream."""
    found: dict[int, str] = {}
    for chunk in answer.chunks:
        for choice in chunk["choices"]:
            text = choice["text"] if "text" in choice else choice["delta"].get("content", "")
            found[choice["index"]] = found.get(choice["index"], "") + text
    return found


@pytest.mark.parametrize("send", [complete, chat])
def test_usage_comes_once_right_before_done(send: Any) -> None:
    chunks = send(Client(), stream=True, stream_options=USAGE).chunks
    assert chunks[-1]["choices"] == []
    usage = chunks[-1]["usage"]
    assert usage["prompt_tokens"] + usage["completion_tokens"] == usage["total_tokens"]
    assert all(chunk["usage"] is None and chunk["choices"] for chunk in chunks[:-1])


@pytest.mark.parametrize("send", [complete, chat])
@pytest.mark.parametrize("options", [None, {}, {"include_usage": False}, {"include_usage": None}])
def test_without_include_usage_no_chunk_has_any(send: Any, options: object) -> None:
    chunks = send(Client(), stream=True, stream_options=options).chunks
    assert all("usage" not in chunk and chunk["choices"] for chunk in chunks)


@pytest.mark.parametrize("send", [complete, chat])
def test_stream_options_without_stream_are_400(send: Any) -> None:
    for stream in (False, None):
        assert send(Client(), stream=stream, stream_options=USAGE).error["param"] == "stream_options"
    assert send(Client(), stream=False, stream_options=None).status == 200


@pytest.mark.parametrize("send", [complete, chat])
def test_continuous_usage_grows_in_every_chunk(send: Any) -> None:
    chunks = send(Client(), stream=True, stream_options=USAGE | {"continuous_usage_stats": True}).chunks
    counts = [chunk["usage"]["completion_tokens"] for chunk in chunks]
    assert counts == sorted(counts) and counts[-1] == 5


@pytest.mark.parametrize("max_tokens", [1, 2, 50])
@pytest.mark.parametrize("n", [1, 3])
def test_each_choice_finishes_exactly_once_and_then_is_silent(max_tokens: int, n: int) -> None:
    tool = {"type": "function", "function": {"name": "f"}}
    chunks = chat(Client(), stream=True, max_tokens=max_tokens, n=n, tools=[tool]).chunks
    for index in range(n):
        reasons = [c["finish_reason"] for chunk in chunks for c in chunk["choices"] if c["index"] == index]
        assert reasons[-1] in ("stop", "length") and not any(reasons[:-1])


def test_each_answer_begins_with_its_role_once() -> None:
    chunks = chat(Client(), stream=True, n=2).chunks
    for index in range(2):
        deltas = [c["delta"] for chunk in chunks for c in chunk["choices"] if c["index"] == index]
        assert deltas[0] == {"role": "assistant", "content": ""} and not any("role" in d for d in deltas[1:])


def test_chunks_share_id_model_and_kind() -> None:
    for send, kind in ((complete, "text_completion"), (chat, "chat.completion.chunk")):
        chunks = send(Client(), stream=True).chunks
        assert {(c["id"], c["object"], c["model"], c["created"]) for c in chunks} == {
            (chunks[0]["id"], kind, "fake", chunks[0]["created"])
        }


def test_events_are_framed_and_not_cached() -> None:
    answer = complete(Client(), stream=True)
    assert answer.headers["cache-control"] == "no-cache" and "content-length" not in answer.headers
    assert answer.body.endswith(b"data: [DONE]\n\n") and answer.headers["x-request-id"]


@settings(max_examples=40, deadline=None)
@given(
    text=st.text(min_size=1, max_size=12),
    max_tokens=st.integers(1, 30),
    stops=st.lists(st.text(min_size=1, max_size=3), max_size=3),
    n=st.integers(1, 2),
    temperature=st.sampled_from([0, 1]),
    logprobs=st.booleans(),
)
def test_stream_equals_whole_answer(
    text: str, max_tokens: int, stops: list[str], n: int, temperature: float, logprobs: bool
) -> None:
    fields = {
        "messages": [{"role": "user", "content": text}],
        "max_tokens": max_tokens,
        "stop": stops,
        "n": n,
        "temperature": temperature,
        "seed": 1,
        "logprobs": logprobs,
    }
    whole = chat(Client(), **fields).json
    stream = chat(Client(), **fields, stream=True, stream_options=USAGE)
    assert joined(stream) == {c["index"]: c["message"]["content"] for c in whole["choices"]}
    finishes = {c["index"]: c for chunk in stream.chunks for c in chunk["choices"] if c["finish_reason"]}
    for choice in whole["choices"]:
        last = finishes[choice["index"]]
        assert (last["finish_reason"], last["stop_reason"]) == (choice["finish_reason"], choice["stop_reason"])
        streamed = [
            entry
            for chunk in stream.chunks
            for c in chunk["choices"]
            if c["index"] == choice["index"] and c["logprobs"]
            for entry in c["logprobs"]["content"]
        ]
        assert streamed == (choice["logprobs"]["content"] if logprobs else [])
    assert stream.chunks[-1]["usage"] == whole["usage"]


def test_seeded_choices_stream_the_same_texts_twice() -> None:
    fields = {"prompt": "A", "n": 3, "max_tokens": 5, "temperature": 1, "seed": 7, "stream": True}
    first = complete(Client(), **fields, stream_options=USAGE)
    assert joined(first) == joined(complete(Client(), **fields))
    assert set(joined(first)) == {0, 1, 2} and len(set(joined(first).values())) > 1
    assert first.chunks[-1]["usage"]["completion_tokens"] == 15


def test_no_replacement_character_is_sent_for_split_characters() -> None:
    answer = complete(Client(), prompt="🙂日本é", max_tokens=12, stream=True)
    assert joined(answer) == {0: "🙂日本é"[:4]}
    assert all("\ufffd" not in event for event in answer.data)


def test_a_stop_string_never_leaks_into_a_delta() -> None:
    answer = complete(Client(), prompt="ABCDEFGHIJ", max_tokens=10, stop=["DEFGHIJ"], stream=True)
    assert joined(answer) == {0: "ABC"}
    assert answer.chunks[-1]["choices"][0]["finish_reason"] == "stop"


def test_a_held_half_match_is_flushed_at_the_end() -> None:
    answer = complete(Client(), prompt="xyab", max_tokens=4, stop=["abc"], stream=True)
    assert joined(answer) == {0: "xyab"} and answer.chunks[-1]["choices"][0]["finish_reason"] == "length"


def test_several_prompts_stream_interleaved() -> None:
    answer = complete(Client(), prompt=["aaaa", "bbbb"], max_tokens=8, stream=True)
    assert joined(answer) == {0: "a" * 8, 1: "b" * 8}
    order = [choice["index"] for chunk in answer.chunks for choice in chunk["choices"]]
    assert order != sorted(order)


def test_token_ids_and_prompt_come_in_chunks_on_request() -> None:
    chunks = chat(Client(), stream=True, return_token_ids=True).chunks
    ids = [i for chunk in chunks for c in chunk["choices"] for i in c.get("token_ids", [])]
    assert ids == chunks[0]["prompt_token_ids"][:5] and "prompt_token_ids" not in chunks[1]


@pytest.mark.parametrize("prompt", ["hello", FakeEngine.SILENCE, ["hello", FakeEngine.SILENCE]])
@pytest.mark.parametrize("n", [1, 2])
def test_a_client_that_leaves_a_stream_aborts_its_requests(prompt: object, n: int) -> None:
    client = Client(FakeLLM(max_model_len=100_000))
    body = {"prompt": prompt, "max_tokens": 90_000, "n": n, "stream": True}
    engine = client.llm.engine
    expected = n * (len(prompt) if isinstance(prompt, list) else 1)
    asyncio.run(client.call("POST", "/v1/completions", body, leave_when=lambda: len(engine.submitted) == expected))
    assert engine.num_running == 0 and len(engine.aborted) == expected
    finished = 'request_success_total{model_name="fake",finished_reason="abort"} ' + str(float(expected))
    assert finished in client.get("/metrics").body.decode()


@pytest.mark.parametrize("prompt", ["hello", FakeEngine.SILENCE, ["hello", FakeEngine.SILENCE]])
def test_a_client_that_leaves_a_whole_answer_aborts_its_requests(prompt: object) -> None:
    client = Client(FakeLLM(max_model_len=100_000))
    body = {"prompt": prompt, "max_tokens": 90_000}
    engine = client.llm.engine
    answer = asyncio.run(client.call("POST", "/v1/completions", body, leave_when=lambda: bool(engine.submitted)))
    assert answer.status == 499
    assert engine.num_running == 0 and engine.aborted


def test_leaving_after_two_chunks_many_times_leaves_nothing_running() -> None:
    client = Client(FakeLLM(max_model_len=100_000))
    body = {"prompt": "hello", "max_tokens": 4000, "stream": True}

    async def leave() -> None:
        await asyncio.gather(*(client.call("POST", "/v1/completions", body, leave_after=2) for _ in range(50)))

    asyncio.run(leave())
    assert client.llm.engine.num_running == 0 and len(client.llm.engine.aborted) == 50


def test_a_cancelled_answer_aborts_its_request() -> None:
    client = Client()

    async def cancel() -> None:
        for stream in (True, False):
            body = {"prompt": FakeEngine.SILENCE, "stream": stream}
            call = asyncio.ensure_future(client.call("POST", "/v1/completions", body))
            while client.llm.engine.num_running == 0:
                await asyncio.sleep(0)
            call.cancel()
            await asyncio.gather(call, return_exceptions=True)

    asyncio.run(cancel())
    assert client.llm.engine.num_running == 0 and len(client.llm.engine.aborted) == 2


def test_a_silent_stream_is_kept_open_by_comments() -> None:
    client = Client(limits=Limits(keep_alive_s=0.02))
    body = {"prompt": FakeEngine.SILENCE, "stream": True}
    answer = asyncio.run(client.call("POST", "/v1/completions", body, leave_after=3))
    assert answer.body == b": keep-alive\n\n" * 3


def test_a_busy_stream_has_no_comments() -> None:
    answer = complete(Client(limits=Limits(keep_alive_s=10)), stream=True, max_tokens=100)
    assert b"keep-alive" not in answer.body
    assert all(json.loads(event) for event in answer.data[:-1])


def test_the_engine_dying_in_a_stream_is_an_error_event() -> None:
    client = Client()

    async def die() -> Answer:
        body = {"prompt": FakeEngine.SILENCE, "stream": True}
        call = asyncio.ensure_future(client.call("POST", "/v1/completions", body))
        while not client.llm.engine.tasks:
            await asyncio.sleep(0)
        client.llm.engine.die("killed by a test")
        return await call

    error = asyncio.run(die()).chunks[-1]["error"]
    assert error["type"] == "service_unavailable_error" and "killed" in error["message"]
