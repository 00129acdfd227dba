"""Field cases F17–F20: split characters and stop strings, against a real model's odd texts."""

from __future__ import annotations

from typing import Any

import pytest

from tests.server.support.real import RealServer


def stream(server: RealServer, **body: Any) -> tuple[list[str], list[int], str]:
    """(text deltas, token ids, finish reason) of a streamed completion."""
    deltas, ids, reason = [], [], ""
    default = {"model": "tiny", "max_tokens": 40, "temperature": 3, "ignore_eos": True, "return_token_ids": True}
    for chunk in server.stream("/v1/completions", default | body):
        choice = chunk["choices"][0]
        deltas.append(choice["text"])
        ids += choice["token_ids"]
        reason = choice["finish_reason"] or reason
    return deltas, ids, reason


def plain_text(server: RealServer, seed: int) -> str:
    """A text of 40 random printable characters: the model picks among letters only."""
    return "".join(stream(server, prompt="Letters:", seed=seed, logit_bias=letters(server))[0])


def letters(server: RealServer) -> dict[str, float]:
    ids = server.post("/tokenize", {"prompt": "".join(chr(c) for c in range(ord("!"), ord("!") + 60))}).json()["tokens"]
    return {str(i): 100.0 for i in ids}


def test_f17_split_utf8(server: RealServer) -> None:
    for prompt in ("Repeat exactly: 🙂🙂 日本語 café 👩‍👩‍👧‍👦", "x"):
        for seed in range(25):
            deltas, ids, _ = stream(server, prompt=prompt, seed=seed)
            full = server.post("/detokenize", {"tokens": ids, "skip_special_tokens": True}).json()["prompt"]
            assert "".join(deltas) == full
            if "\ufffd" not in full:
                assert not any("\ufffd" in delta for delta in deltas)


def test_f17_a_multibyte_character_forced_byte_by_byte(server: RealServer) -> None:
    first, second = server.post("/tokenize", {"prompt": "é"}).json()["tokens"]
    deltas, ids, _ = stream(server, prompt="x", seed=1, logit_bias={str(first): 100, str(second): 100}, max_tokens=200)
    full = server.post("/detokenize", {"tokens": ids}).json()["prompt"]
    assert "é" in full and "".join(deltas) == full
    assert sum(delta.count("é") for delta in deltas) == full.count("é")


@pytest.mark.parametrize("seed", range(10))
def test_f18_stop_prefix_must_not_leak(server: RealServer, seed: int) -> None:
    text = plain_text(server, seed)
    stop = text[12:19]
    deltas, _, reason = stream(server, prompt="Letters:", seed=seed, logit_bias=letters(server), stop=[stop])
    assert reason == "stop" and "".join(deltas) == text[: text.index(stop)]


def test_f19_stop_inside_a_token(server: RealServer) -> None:
    the = server.post("/tokenize", {"prompt": " the"}).json()["tokens"]
    assert len(the) == 1
    deltas, ids, reason = stream(server, prompt="x", logit_bias={str(the[0]): 100}, temperature=0, stop=["th"])
    assert (deltas, ids, reason) == ([" "], the, "stop")


@pytest.mark.parametrize("seed", range(10))
def test_f20_the_earliest_of_several_stops_wins(server: RealServer, seed: int) -> None:
    text = plain_text(server, seed)
    stops = [text[9:11], text[9:12], text[10:13], text[8:14]]
    deltas, _, reason = stream(server, prompt="Letters:", seed=seed, logit_bias=letters(server), stop=stops)
    assert reason == "stop"
    ends = {stop: text.index(stop) for stop in stops}
    assert "".join(deltas) == text[: min(ends.values())]


@pytest.mark.parametrize("seed", range(5))
def test_f20_a_half_match_is_flushed_at_the_end(server: RealServer, seed: int) -> None:
    text = plain_text(server, seed)
    stops = [text[-1] + "\x00", text[-3:] + "\x00", text[-2:] + "\x00"]
    deltas, _, reason = stream(server, prompt="Letters:", seed=seed, logit_bias=letters(server), stop=stops)
    assert reason == "length" and "".join(deltas) == text


def test_f20_limits_of_stops(server: RealServer) -> None:
    assert server.complete(prompt="x", stop=["\x00" + str(i) for i in range(32)]).status_code == 200
    for stop in ([""], "", ["x"] * 33):
        answer = server.complete(prompt="x", stop=stop)
        assert answer.status_code == 400 and answer.json()["error"]["param"] == "stop"
