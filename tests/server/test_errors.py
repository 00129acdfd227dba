"""Every error is OpenAI's error body, whatever raised it."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from headrace.server.limits import Limits
from tests.server.support.client import Client, chat, complete
from tests.server.support.fakes import FakeEngine, FakeLLM


def test_an_unknown_path_is_404_and_names_the_nearest() -> None:
    answer = Client().post("/v1/chat/completion", {})
    assert answer.status == 404 and "/v1/chat/completions" in answer.error["message"]


def test_a_wrong_method_is_405_and_names_the_right_ones() -> None:
    answer = Client().get("/v1/completions")
    assert answer.status == 405 and answer.headers["allow"] == "POST" and answer.error["code"] == "method_not_allowed"


@pytest.mark.parametrize("declared", [True, False])
def test_a_long_body_is_413(declared: bool) -> None:
    client = Client(limits=Limits(max_body_bytes=1000))
    headers = {"content-length": "100000"} if declared else {}
    answer = client.post("/v1/completions", b" " * 1001, headers=headers)
    assert answer.status == 413 and "1000 bytes" in answer.error["message"]


def test_a_declared_length_of_absurd_size_is_413() -> None:
    answer = Client().post("/v1/completions", b"{}", headers={"content-length": "9" * 5000})
    assert answer.status == 413


def test_a_body_that_is_not_declared_json_is_415() -> None:
    for media_type in ("text/plain", "application/x-www-form-urlencoded", ""):
        answer = Client().post("/v1/completions", {"prompt": "x"}, headers={"content-type": media_type})
        assert answer.status == 415 and "Content-Type" in answer.error["message"]
    assert complete(Client()).status == 200
    charset = {"content-type": "application/json; charset=utf-8"}
    assert Client().post("/v1/completions", {"prompt": "x"}, headers=charset).status == 200


def test_a_wrong_model_is_404_model_not_found() -> None:
    for send in (complete, chat):
        error = send(Client(), model="fak").error
        assert error["code"] == "model_not_found" and error["param"] == "model" and "'fake'" in error["message"]


@pytest.mark.parametrize(
    "path", ["/health", "/v1/models", "/v1/models/fake", "/v1/engine/memory", "/v1/engine/startup"]
)
def test_until_the_engine_is_ready_the_answer_is_503(path: str) -> None:
    client = Client(FakeLLM(started=False))
    answer = client.get(path)
    assert answer.status == 503 and answer.error["code"] == "engine_starting" and answer.headers["retry-after"]
    assert complete(client).status == chat(client).status == 503
    assert client.post("/tokenize", {"prompt": "x"}).status == 503


def test_after_the_engine_died_the_answer_is_503_with_the_reason() -> None:
    client = Client()
    client.llm.engine.dead_reason = "killed by a test"
    for answer in (complete(client), chat(client), client.get("/health"), client.get("/v1/engine/memory")):
        assert answer.status == 503 and "killed by a test" in answer.error["message"]
    assert client.get("/metrics").status == 200


def test_a_fault_inside_one_request_ends_that_request_only() -> None:
    client = Client()
    answer = complete(client, prompt=FakeEngine.FAULT)
    assert answer.status == 500 and answer.error["type"] == "server_error"
    assert complete(client).status == 200


def test_an_unforeseen_exception_is_500_without_details(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    client = Client()

    def broken(*_: Any, **__: Any) -> None:
        raise ZeroDivisionError("a secret")

    monkeypatch.setattr(client.llm, "prepare", broken)
    answer = complete(client)
    assert answer.status == 500 and "secret" not in answer.error["message"]
    assert "a secret" in caplog.text
    monkeypatch.undo()
    assert complete(client).status == 200


def test_a_fault_in_a_stream_is_its_last_event() -> None:
    client = Client()
    answer = complete(client, prompt=FakeEngine.FAULT, stream=True)
    assert answer.status == 200
    assert answer.chunks[-1]["error"]["type"] == "server_error"
    assert answer.chunks[0]["choices"][0]["text"] == "<"


def test_request_ids_come_back_and_bad_ones_are_replaced() -> None:
    client = Client()
    assert client.get("/health", headers={"X-Request-Id": "abc-1"}).headers["x-request-id"] == "abc-1"
    for bad in ("x" * 129, "a b", "a\tb"):
        assert client.get("/health", headers={"X-Request-Id": bad}).headers["x-request-id"] not in (bad, "")
    first, second = (client.get("/nope").headers["x-request-id"] for _ in range(2))
    assert first != second


def test_one_request_id_used_twice_at_once_does_not_collide() -> None:
    client = Client()

    async def both() -> list[int]:
        body = {"prompt": "hello", "max_tokens": 20}
        calls = [client.call("POST", "/v1/completions", body, headers={"X-Request-Id": "same"}) for _ in range(2)]
        return [answer.status for answer in await asyncio.gather(*calls)]

    assert asyncio.run(both()) == [200, 200]


def test_rejected_requests_are_counted() -> None:
    client = Client()
    complete(client, n=0)
    chat(client, model="other")
    assert 'headrace:requests_rejected_total{model_name="fake"} 2.0' in client.get("/metrics").body.decode()
