"""The official `openai` client, unmodified, against a real server process."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import openai
import pytest

from tests.server.support.real import CONTEXT, RealServer, write_model

HI: list[Any] = [{"role": "user", "content": "Hi"}]
GREEDY: dict[str, Any] = {"model": "tiny", "temperature": 0, "max_tokens": 6}
TOOL: Any = {
    "type": "function",
    "function": {"name": "weather", "description": "d", "parameters": {"type": "object", "properties": {}}},
}


def test_models_are_listed_and_retrieved(client: openai.OpenAI) -> None:
    models = client.models.list().data
    assert [model.id for model in models] == ["tiny"] and models[0].to_dict()["max_model_len"] == CONTEXT
    assert client.models.retrieve("tiny").id == "tiny"


def test_chat(client: openai.OpenAI) -> None:
    answer = client.chat.completions.create(messages=HI, seed=1, **GREEDY)
    assert answer.choices[0].message.role == "assistant" and answer.choices[0].message.content is not None
    assert answer.choices[0].finish_reason in ("stop", "length")
    assert answer.usage is not None and answer.usage.prompt_tokens_details is not None
    assert answer.usage.total_tokens == answer.usage.prompt_tokens + answer.usage.completion_tokens


def test_chat_stream_equals_chat(client: openai.OpenAI) -> None:
    whole = client.chat.completions.create(messages=HI, **GREEDY)
    stream = client.chat.completions.create(messages=HI, stream=True, stream_options={"include_usage": True}, **GREEDY)
    chunks = list(stream)
    text = "".join(choice.delta.content or "" for chunk in chunks for choice in chunk.choices)
    assert text == whole.choices[0].message.content
    assert chunks[-1].usage is not None and whole.usage is not None
    assert chunks[-1].usage.completion_tokens == whole.usage.completion_tokens
    reasons = [choice.finish_reason for chunk in chunks for choice in chunk.choices if choice.finish_reason]
    assert reasons == [whole.choices[0].finish_reason]


def test_the_stream_helper_accumulates(client: openai.OpenAI, server: RealServer) -> None:
    letter = server.post("/tokenize", {"prompt": "c"}).json()["tokens"][0]
    forced: dict[str, Any] = {"logit_bias": {str(letter): 100}, "stop": "ccc", "logprobs": True, "top_logprobs": 1}
    with client.chat.completions.stream(messages=HI, n=2, **forced, **GREEDY) as stream:
        for _ in stream:
            pass
        final = stream.get_final_completion()
    assert [choice.finish_reason for choice in final.choices] == ["stop", "stop"]
    assert [choice.message.content for choice in final.choices] == ["", ""]
    assert final.choices[0].logprobs is not None and final.choices[0].logprobs.content


def test_async_client_with_several_requests_at_once(server: RealServer) -> None:
    async def run() -> list[str | None]:
        async with openai.AsyncOpenAI(base_url=server.url + "/v1", api_key="unused", max_retries=0) as client:
            calls = [
                client.chat.completions.create(messages=[{"role": "user", "content": str(i)}], **GREEDY)
                for i in range(8)
            ]
            return [answer.choices[0].message.content for answer in await asyncio.gather(*calls)]

    assert asyncio.run(run()) == asyncio.run(run())


def test_async_stream_and_early_close(server: RealServer) -> None:
    async def run() -> int:
        async with openai.AsyncOpenAI(base_url=server.url + "/v1", api_key="unused", max_retries=0) as client:
            stream = await client.completions.create(
                model="tiny", prompt="x", max_tokens=1900, stream=True, temperature=0, extra_body={"ignore_eos": True}
            )
            seen = 0
            async for _ in stream:
                seen += 1
                if seen == 3:
                    break
            await stream.close()
            for _ in range(200):
                if server.metric("headrace:num_requests_running") == 0:
                    return seen
                await asyncio.sleep(0.01)
            raise AssertionError("the request still runs after its client left")

    assert asyncio.run(run()) == 3


def test_completions_with_logprobs_and_echo(client: openai.OpenAI) -> None:
    answer = client.completions.create(prompt="one two", logprobs=2, echo=True, **GREEDY)
    choice = answer.choices[0]
    assert choice.text.startswith("one two") and choice.logprobs is not None
    assert choice.logprobs.token_logprobs is not None and choice.logprobs.token_logprobs[0] is None
    assert choice.logprobs.tokens is not None and choice.logprobs.text_offset is not None
    assert len(choice.logprobs.tokens) == len(choice.logprobs.text_offset) == len(choice.logprobs.token_logprobs)


def test_completions_stream_with_several_choices(client: openai.OpenAI) -> None:
    stream = client.completions.create(prompt=["a", "b"], n=2, stream=True, **GREEDY)
    finished = [choice.index for chunk in stream for choice in chunk.choices if choice.finish_reason]
    assert sorted(finished) == [0, 1, 2, 3]


def test_logprobs_of_chat(client: openai.OpenAI) -> None:
    answer = client.chat.completions.create(messages=HI, logprobs=True, top_logprobs=3, **GREEDY)
    logprobs = answer.choices[0].logprobs
    assert logprobs is not None and logprobs.content is not None and answer.usage is not None
    assert len(logprobs.content) == answer.usage.completion_tokens
    assert all(len(entry.top_logprobs) == 3 for entry in logprobs.content)


def test_sampling_fields_and_bookkeeping(client: openai.OpenAI) -> None:
    answer = client.chat.completions.create(
        model="tiny",
        messages=HI,
        max_completion_tokens=4,
        temperature=0.7,
        top_p=0.9,
        seed=3,
        stop=["\n\n", "END"],
        n=2,
        logit_bias={"5": -100},
        frequency_penalty=0,
        presence_penalty=0,
        user="someone",
        store=False,
        metadata={"a": "b"},
        service_tier="auto",
        parallel_tool_calls=True,
        tools=[TOOL],
        tool_choice="auto",
        response_format={"type": "text"},
        extra_body={"top_k": 10, "ignore_eos": True},
        extra_headers={"X-Request-Id": "conformance-1"},
    )
    assert len(answer.choices) == 2


def test_request_ids_come_back(client: openai.OpenAI) -> None:
    raw = client.chat.completions.with_raw_response.create(
        messages=HI, extra_headers={"X-Request-Id": "conformance-2"}, **GREEDY
    )
    assert raw.headers["x-request-id"] == "conformance-2"
    assert client.chat.completions.create(messages=HI, **GREEDY)._request_id


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"temperature": -1}, "temperature"),
        ({"n": 10**6}, "n"),
        ({"max_tokens": 10**9}, "max_tokens"),
        ({"extra_body": {"max_token": 1}}, "max_token"),
        ({"response_format": {"type": "json_object"}}, "response_format"),
        ({"tools": [TOOL], "tool_choice": "required"}, "tool_choice"),
        ({"messages": []}, "messages"),
    ],
)
def test_bad_requests_are_bad_request_errors(client: openai.OpenAI, fields: dict[str, Any], param: str) -> None:
    with pytest.raises(openai.BadRequestError) as caught:
        client.chat.completions.create(**GREEDY | {"messages": HI} | fields)
    assert caught.value.param == param and caught.value.type == "invalid_request_error"


def test_a_wrong_model_is_a_not_found_error(client: openai.OpenAI) -> None:
    with pytest.raises(openai.NotFoundError) as caught:
        client.completions.create(model="other", prompt="x")
    assert caught.value.code == "model_not_found"


def test_an_unknown_endpoint_is_a_not_found_error(client: openai.OpenAI) -> None:
    with pytest.raises(openai.NotFoundError):
        client.embeddings.create(model="tiny", input="x")


def test_a_too_long_prompt_is_a_bad_request_with_its_code(client: openai.OpenAI) -> None:
    with pytest.raises(openai.BadRequestError) as caught:
        client.completions.create(model="tiny", prompt=[5] * CONTEXT, max_tokens=1)
    assert caught.value.code == "context_length_exceeded"


def test_a_timeout_is_an_api_timeout_error(client: openai.OpenAI) -> None:
    with pytest.raises(openai.APITimeoutError):
        client.completions.create(
            model="tiny", prompt=[5] * 1000, n=16, max_tokens=1000, extra_body={"ignore_eos": True}, timeout=0.05
        )


def test_a_killed_engine_and_a_killed_server(tmp_path: Path) -> None:
    import os
    import signal

    with RealServer(write_model(tmp_path / "llama")) as server:
        client = openai.OpenAI(base_url=server.url + "/v1", api_key="unused", max_retries=0)
        with client:
            stream = client.completions.create(
                model="tiny", prompt="x", max_tokens=2000, stream=True, extra_body={"ignore_eos": True}
            )
            engine_pid = server.engine_pid
            next(iter(stream))
            os.kill(engine_pid, signal.SIGKILL)
            with pytest.raises(openai.APIError, match="SIGKILL"):
                list(stream)
            with pytest.raises(openai.InternalServerError, match="SIGKILL") as caught:
                client.chat.completions.create(messages=HI, **GREEDY)
            assert caught.value.status_code == 503
            assert server.get("/health").status_code == 503
            server.process.kill()
            server.process.wait()
            with pytest.raises(openai.APIConnectionError):
                client.chat.completions.create(messages=HI, **GREEDY)
