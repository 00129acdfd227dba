"""Models, tokens, health, version, memory, metrics."""

from __future__ import annotations

import asyncio

import pytest

import headrace
from tests.server.support.client import Client, complete
from tests.server.support.fakes import FakeLLM


def test_models_lists_every_served_name_with_the_context_length() -> None:
    client = Client(FakeLLM(served=("a", "b/c")))
    listed = client.get("/v1/models").json
    assert listed["object"] == "list"
    assert [(m["id"], m["object"], m["max_model_len"]) for m in listed["data"]] == [
        ("a", "model", 512),
        ("b/c", "model", 512),
    ]
    assert client.get("/v1/models/b/c").json == listed["data"][1]
    assert client.get("/v1/models/d").error["code"] == "model_not_found"


def test_every_served_name_is_answered_under_itself() -> None:
    client = Client(FakeLLM(served=("a", "b")))
    assert [complete(client, model=name).json["model"] for name in ("a", "b", None)] == ["a", "b", "a"]


def test_without_served_names_the_model_option_is_the_name() -> None:
    client = Client(FakeLLM(served=(), model="some/model"))
    assert client.get("/v1/models").json["data"][0]["id"] == "some/model"


def test_tokenize_and_detokenize_are_inverse() -> None:
    client = Client()
    answer = client.post("/tokenize", {"prompt": "héllo", "return_token_strs": True}).json
    assert answer["tokens"] == list("héllo".encode()) and answer["count"] == 6 and answer["max_model_len"] == 512
    assert answer["token_strs"] == ["h", "bytes:\\xc3", "bytes:\\xa9", "l", "l", "o"]
    assert client.post("/detokenize", {"tokens": answer["tokens"]}).json == {"prompt": "héllo"}


def test_tokenize_of_nothing_is_nothing() -> None:
    assert Client().post("/tokenize", {"prompt": ""}).json["tokens"] == []
    assert Client().post("/detokenize", {"tokens": []}).json == {"prompt": ""}


def test_tokenize_renders_messages() -> None:
    client = Client()
    body = {"messages": [{"role": "user", "content": "Hi"}], "add_generation_prompt": False}
    ids = client.post("/tokenize", body).json["tokens"]
    assert client.post("/detokenize", {"tokens": ids}).json["prompt"] == "<|im_start|>user\nHi<|im_end|>\n"
    skipped = client.post("/detokenize", {"tokens": ids, "skip_special_tokens": True}).json["prompt"]
    assert skipped == "user\nHi\n"


@pytest.mark.parametrize(
    ("path", "body", "param"),
    [
        ("/tokenize", {}, "prompt"),
        ("/tokenize", {"prompt": "x", "messages": [{"role": "user", "content": "x"}]}, "prompt"),
        ("/tokenize", {"promt": "x"}, "promt"),
        ("/tokenize", {"prompt": 1}, "prompt"),
        ("/detokenize", {"tokens": [259]}, "tokens"),
        ("/detokenize", {"tokens": [-1]}, "tokens"),
        ("/detokenize", {"token": [1]}, "token"),
        ("/detokenize", {}, "tokens"),
    ],
)
def test_bad_token_requests_are_400(path: str, body: dict[str, object], param: str) -> None:
    answer = Client().post(path, body)
    assert answer.status == 400 and answer.error["param"] == param


def test_health_and_version() -> None:
    assert Client().get("/health").json == {"status": "ready"}
    assert Client().get("/version").json == {"version": headrace.__version__}


def test_the_memory_table_is_served() -> None:
    table = Client().get("/v1/engine/memory").json
    assert table["lines"][0]["name"] == "weights" and table["num_free_kv_blocks"] == table["num_kv_blocks"] == 1000


def test_the_startup_names_both_processes_and_adds_up() -> None:
    startup = Client().get("/v1/engine/startup").json
    assert [process["name"] for process in startup["processes"]] == ["server", "engine"]
    for process in startup["processes"]:
        assert process["total_s"] == pytest.approx(sum(phase["seconds"] for phase in process["phases"]))


def test_metrics_count_what_requests_did() -> None:
    from prometheus_client.parser import text_string_to_metric_families

    client = Client()
    complete(client, prompt=["ab", "c"], n=2, max_tokens=4)
    answer = client.get("/metrics")
    assert answer.headers["content-type"].startswith("text/plain; version=0.0.4")
    values = {
        (s.name, s.labels.get("finished_reason")): s.value
        for family in text_string_to_metric_families(answer.body.decode())
        for s in family.samples
    }
    assert values["headrace:request_success_total", "length"] == 4
    assert values["vllm:time_to_first_token_seconds_count", None] == 4
    assert values["headrace:inter_token_latency_seconds_count", None] == 12
    assert values["headrace:request_prompt_tokens_sum", None] == 6


def test_metrics_answer_head_and_while_loading() -> None:
    client = Client(FakeLLM(started=False))
    answer = client.get("/metrics")
    assert answer.status == 200 and 'headrace:ready{model_name="fake"} 0.0' in answer.body.decode()
    assert asyncio.run(client.call("HEAD", "/metrics")).status == 200
