"""`/v1/completions`: prompts, lengths, choices, logprobs."""

from __future__ import annotations

from typing import Any

import pytest

from headrace.server.limits import Limits
from tests.server.support.client import Client, complete
from tests.server.support.fakes import FakeEngine, FakeLLM


def texts(answer: Any) -> list[str]:
    return [choice["text"] for choice in answer.json["choices"]]


def test_a_text_is_continued() -> None:
    answer = complete(Client(), model="fake")
    body = answer.json
    assert texts(answer) == ["hello"] and body["object"] == "text_completion" and body["model"] == "fake"
    assert body["choices"][0]["finish_reason"] == "length"
    assert body["usage"] == {
        "prompt_tokens": 5,
        "completion_tokens": 5,
        "total_tokens": 10,
        "prompt_tokens_details": {"cached_tokens": 0},
    }


@pytest.mark.parametrize("prompt", ["", [], [""], ["a", ""], [[]], [[1], []], [-1], [999999999], [259], None])
def test_an_empty_or_impossible_prompt_is_400_naming_prompt(prompt: object) -> None:
    answer = complete(Client(), prompt=prompt)
    assert answer.status == 400 and answer.error["param"] == "prompt"


def test_a_missing_prompt_is_400_naming_prompt() -> None:
    answer = Client().post("/v1/completions", {"max_tokens": 1})
    assert answer.status == 400 and answer.error["param"] == "prompt"


@pytest.mark.parametrize("prompt", [["a", 1], [1, [2]], ["a", [1]]])
def test_mixed_prompts_are_400(prompt: object) -> None:
    assert complete(Client(), prompt=prompt).error["param"] == "prompt"


def test_lists_give_one_choice_per_prompt_in_order() -> None:
    client = Client()
    assert texts(complete(client, prompt=["ab", "cd"], max_tokens=2)) == ["ab", "cd"]
    assert texts(complete(client, prompt=[97, 98], max_tokens=2)) == ["ab"]
    assert texts(complete(client, prompt=[[97], [98, 99]], max_tokens=2)) == ["aa", "bc"]


def test_choices_of_several_prompts_and_n_are_numbered_prompt_first() -> None:
    answer = complete(Client(), prompt=["ab", "cd"], n=2, max_tokens=2)
    assert [c["index"] for c in answer.json["choices"]] == [0, 1, 2, 3]
    assert texts(answer) == ["ab", "ab", "cd", "cd"]
    assert answer.json["usage"]["completion_tokens"] == 8 and answer.json["usage"]["prompt_tokens"] == 4


def test_the_fan_out_is_limited() -> None:
    client = Client(limits=Limits(max_choices=4))
    assert complete(client, prompt=["a"] * 4).status == 200
    assert complete(client, prompt=["a"] * 5).error["param"] == "prompt"
    assert complete(client, prompt=["a"] * 2, n=3).error["param"] == "n"


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"max_tokens": 0}, "max_tokens"),
        ({"max_tokens": -1}, "max_tokens"),
        ({"max_tokens": "5"}, "max_tokens"),
        ({"max_tokens": 10**9}, "max_tokens"),
        ({"max_completion_tokens": 10**9}, "max_tokens"),
        ({"max_completion_tokens": -1}, "max_completion_tokens"),
    ],
)
def test_impossible_lengths_are_400(fields: dict[str, Any], param: str) -> None:
    answer = complete(Client(), **fields)
    assert answer.status == 400 and answer.error["param"] == param


def test_too_large_a_length_names_prompt_limit_and_the_largest_allowed() -> None:
    error = complete(Client(), max_tokens=10**9).error
    for number in ("512", "5", "507"):
        assert number in error["message"].replace(":", " ").replace(";", " ").split()
    assert complete(Client(), max_tokens=507).status == 200


def test_null_is_the_rest_of_the_context_and_missing_is_16() -> None:
    assert complete(Client(), max_tokens=None).json["usage"]["completion_tokens"] == 507
    answer = Client().post("/v1/completions", {"prompt": "hello"})
    assert answer.json["usage"]["completion_tokens"] == 16


def test_max_completion_tokens_wins() -> None:
    assert complete(Client(), max_completion_tokens=3).json["usage"]["completion_tokens"] == 3


def test_a_prompt_must_leave_room_for_one_token() -> None:
    client = Client(FakeLLM(max_model_len=64))
    assert complete(client, prompt="x" * 63, max_tokens=1).status == 200
    for length in (64, 65):
        error = complete(client, prompt="x" * length, max_tokens=1).error
        assert error["code"] == "context_length_exceeded" and error["param"] == "prompt"


def test_a_text_far_too_long_is_refused_before_it_is_tokenized(monkeypatch: pytest.MonkeyPatch) -> None:
    client = Client(FakeLLM(max_model_len=64))
    monkeypatch.setattr(client.llm.tokenizer, "_encoder", None)
    error = complete(client, prompt="x" * 5000).error
    assert error["code"] == "context_length_exceeded"


def test_long_texts_are_tokenized_in_a_thread() -> None:
    client = Client(FakeLLM(max_model_len=8192), limits=Limits(inline_chars=10))
    assert texts(complete(client, prompt="z" * 5000, max_tokens=2)) == ["zz"]


def test_end_of_turn_ends_the_text_unless_ignored() -> None:
    choice = complete(Client(), prompt=FakeEngine.END, max_tokens=8).json["choices"][0]
    assert (choice["text"], choice["finish_reason"], choice["stop_reason"]) == ("<e", "stop", None)
    answer = complete(Client(), prompt=FakeEngine.END, max_tokens=8, ignore_eos=True)
    assert answer.json["choices"][0]["finish_reason"] == "length"
    assert answer.json["usage"]["completion_tokens"] == 8


def test_stop_strings_and_stop_tokens_say_what_matched() -> None:
    choice = complete(Client(), stop="lo").json["choices"][0]
    assert (choice["text"], choice["finish_reason"], choice["stop_reason"]) == ("hel", "stop", "lo")
    choice = complete(Client(), stop=["zzz", "lo"], include_stop_str_in_output=True).json["choices"][0]
    assert choice["text"] == "hello"
    choice = complete(Client(), stop_token_ids=[ord("l")]).json["choices"][0]
    assert (choice["text"], choice["finish_reason"], choice["stop_reason"]) == ("he", "stop", ord("l"))


def test_a_stop_string_aborts_the_rest_in_the_engine() -> None:
    client = Client()
    complete(client, stop="el", max_tokens=400)
    assert len(client.llm.engine.aborted) == 1 and client.llm.engine.num_running == 0


def test_echo_puts_the_prompt_before_the_text() -> None:
    client = Client()
    assert texts(complete(client, echo=True)) == ["hellohello"]
    assert texts(complete(client, prompt=[104, 105], echo=True, max_tokens=2)) == ["hihi"]
    assert texts(complete(client, prompt=["ab", "c"], n=2, echo=True, max_tokens=1)) == ["aba", "aba", "cc", "cc"]


def test_logprobs_are_aligned_lists() -> None:
    logprobs = complete(Client(), prompt="hé", max_tokens=3, logprobs=3).json["choices"][0]["logprobs"]
    assert logprobs["tokens"] == ["h", "bytes:\\xc3", "bytes:\\xa9"]
    assert logprobs["token_logprobs"] == [-0.5] * 3
    assert logprobs["text_offset"] == [0, 1, 1]
    for token, top in zip(logprobs["tokens"], logprobs["top_logprobs"], strict=True):
        assert len(top) == 3 and top[token] == -0.5


def test_the_sampled_token_is_always_among_the_alternatives() -> None:
    client = Client()
    assert complete(client, max_tokens=1, logprobs=0).json["choices"][0]["logprobs"]["top_logprobs"] == [{"h": -0.5}]
    assert complete(client, max_tokens=1, logprobs=1).json["choices"][0]["logprobs"]["top_logprobs"] == [
        {"i": -0.25, "h": -0.5}
    ]


def test_without_logprobs_the_field_is_null() -> None:
    assert complete(Client()).json["choices"][0]["logprobs"] is None


@pytest.mark.parametrize("stream", [False, True])
def test_echo_scores_the_prompt_and_begins_with_null(stream: bool) -> None:
    answer = complete(Client(), echo=True, logprobs=1, max_tokens=1, stream=stream)
    if stream:
        found: dict[str, list[Any]] = {}
        for chunk in answer.chunks:
            for name, values in chunk["choices"][0]["logprobs"].items():
                found.setdefault(name, []).extend(values)
    else:
        found = answer.json["choices"][0]["logprobs"]
    assert found["tokens"] == list("helloh")
    assert found["token_logprobs"] == [None] + [-0.5] * 5
    assert found["top_logprobs"][0] is None and all(found["top_logprobs"][1:])
    assert found["text_offset"] == list(range(6))


def test_echo_without_output_scores_the_prompt_only() -> None:
    answer = complete(Client(), echo=True, logprobs=2, max_tokens=0).json
    choice = answer["choices"][0]
    assert choice["text"] == "hello" and choice["finish_reason"] == "length"
    assert choice["logprobs"]["tokens"] == list("hello") and choice["logprobs"]["token_logprobs"][0] is None
    assert answer["usage"]["completion_tokens"] == 0


def test_echo_without_output_and_without_logprobs_is_the_prompt() -> None:
    choice = complete(Client(), echo=True, max_tokens=0).json["choices"][0]
    assert choice["text"] == "hello" and choice["logprobs"] is None
    assert complete(Client(), echo=True, max_tokens=0, n=2).error["param"] == "n"


@pytest.mark.parametrize("stream", [False, True])
def test_every_choice_of_an_echo_has_the_prompts_scores(stream: bool) -> None:
    answer = complete(Client(), prompt=["hello world", "abc"], n=3, echo=True, logprobs=1, max_tokens=2, stream=stream)
    tokens: dict[int, list[str]] = {}
    for part in answer.chunks if stream else [answer.json]:
        for choice in part["choices"]:
            tokens.setdefault(choice["index"], []).extend(choice["logprobs"]["tokens"])
    assert {i: "".join(t) for i, t in tokens.items()} == {
        **dict.fromkeys((0, 1, 2), "hello worldhe"),
        **dict.fromkeys((3, 4, 5), "abcab"),
    }


def test_token_ids_come_back_on_request() -> None:
    choice = complete(Client(), max_tokens=2, return_token_ids=True).json["choices"][0]
    assert choice["token_ids"] == [104, 101] and choice["prompt_token_ids"] == list(b"hello")
    assert "token_ids" not in complete(Client()).json["choices"][0]


def test_a_repeated_prompt_reports_its_cached_tokens() -> None:
    client = Client()
    prompt = "x" * 40
    cached = [
        complete(client, prompt=prompt, n=2).json["usage"]["prompt_tokens_details"]["cached_tokens"] for _ in range(2)
    ]
    assert cached == [0, 32]


def test_priority_and_salt_reach_the_engine() -> None:
    client = Client()
    complete(client, priority=-3, cache_salt="tenant")
    request = client.llm.engine.submitted[0]
    assert (request.priority, request.cache_salt) == (-3, "tenant")


def test_seeded_choices_repeat_and_differ() -> None:
    client = Client()
    first, second = (texts(complete(client, n=3, temperature=1, seed=7)) for _ in range(2))
    assert first == second and len(set(first)) > 1
