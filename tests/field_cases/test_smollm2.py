"""Field cases F18, F34 and F14 with the demo model; skipped where it cannot be had."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.server.support.real import RealServer


@pytest.fixture(scope="module")
def demo(smollm2_path: Path) -> Iterator[RealServer]:
    with RealServer(smollm2_path, "--max-model-len", "2048", "--max-num-seqs", "8") as server:
        yield server


def test_the_greedy_continuation_is_the_models(demo: RealServer) -> None:
    body = {"prompt": "The capital of France is", "max_tokens": 5, "return_token_ids": True}
    choice = demo.complete(**body).json()["choices"][0]
    assert choice["prompt_token_ids"] == [504, 3575, 282, 4649, 314]
    assert choice["token_ids"] == [7042, 30, 198, 198, 504]


def test_f18_stop_prefix_must_not_leak(demo: RealServer) -> None:
    body = {"model": "tiny", "prompt": "Here is the English alphabet: ABC", "temperature": 0, "max_tokens": 12}
    plain = "".join(chunk["choices"][0]["text"] for chunk in demo.stream("/v1/completions", body))
    assert plain.startswith("DEFGHIJ")
    chunks = list(demo.stream("/v1/completions", body | {"stop": ["DEFGHIJ"]}))
    assert "".join(chunk["choices"][0]["text"] for chunk in chunks) == ""
    assert chunks[-1]["choices"][0]["finish_reason"] == "stop"
    inside = demo.complete(**body | {"stop": ["EF"]}).json()["choices"][0]
    assert (inside["text"], inside["stop_reason"]) == ("D", "EF")


def test_f14_chat_equals_completion(demo: RealServer) -> None:
    messages = [{"role": "user", "content": "Name a river."}]
    ids = demo.post("/tokenize", {"messages": messages}).json()["tokens"]
    completed = demo.complete(prompt=ids, max_tokens=12).json()
    answered = demo.chat(messages=messages, max_tokens=12).json()
    assert completed["choices"][0]["text"] == answered["choices"][0]["message"]["content"]
    assert completed["usage"]["prompt_tokens"] == answered["usage"]["prompt_tokens"]


def test_f34_repeat_greedy(demo: RealServer) -> None:
    body = {"prompt": "A river is a natural stream of fresh water. " * 12, "max_tokens": 6, "logprobs": 5}
    answers = [demo.complete(**body).json() for _ in range(3)]
    assert all(answer["choices"] == answers[0]["choices"] for answer in answers)
    cached = [answer["usage"]["prompt_tokens_details"]["cached_tokens"] for answer in answers]
    assert cached[0] == 0 and cached[1] == cached[2] > 0
