"""Field cases F34–F37: prefix cache and company change no bit of an answer.

Logprobs are compared exactly: JSON writes a float32 so that reading it gives the same number.
"""

from __future__ import annotations

import concurrent.futures
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.server.support.real import RealServer

BLOCK_SIZE = 16


@pytest.fixture(scope="module")
def uncached(model_folder: Path) -> Iterator[RealServer]:
    with RealServer(model_folder, "--no-enable-prefix-caching") as server:
        yield server


def outcome(server: RealServer, prompt: list[int], **body: Any) -> tuple[list[int], list[float], Any]:
    """(token ids, logprobs, alternatives) of a completion."""
    default = {"max_tokens": 8, "logprobs": 5, "return_token_ids": True, "ignore_eos": True}
    answer = server.complete(**default | {"prompt": prompt} | body).json()
    choice = answer["choices"][0]
    return choice["token_ids"], choice["logprobs"]["token_logprobs"], choice["logprobs"]["top_logprobs"]


def cached_tokens(server: RealServer, prompt: list[int]) -> int:
    usage = server.complete(prompt=prompt, max_tokens=1).json()["usage"]
    return int(usage["prompt_tokens_details"]["cached_tokens"])


def prompt_of(length: int, salt: int) -> list[int]:
    """Distinct prompts for distinct salts, so that cases do not warm the cache for each other."""
    return [3 + (salt * 7919 + i * i * 31 + i) % 290 for i in range(length)]


def test_f34_repeat_greedy(server: RealServer) -> None:
    prompt = prompt_of(1464, 1)
    usages, outcomes = [], []
    for _ in range(4):
        body = {"prompt": prompt, "max_tokens": 12, "logprobs": 5, "ignore_eos": True}
        answer = server.complete(**body).json()
        outcomes.append((answer["choices"][0]["text"], answer["choices"][0]["logprobs"]))
        usages.append(answer["usage"]["prompt_tokens_details"]["cached_tokens"])
    assert all(found == outcomes[0] for found in outcomes)
    assert usages[0] == 0 and all(usage == 1456 for usage in usages[1:])


@pytest.mark.parametrize("blocks", [1, 2, 3, 4])
def test_f35_block_boundary_sweep(server: RealServer, uncached: RealServer, blocks: int) -> None:
    for offset in (-1, 0, 1):
        length = blocks * BLOCK_SIZE + offset
        prompt = prompt_of(length, 100 + length)
        first = outcome(server, prompt)
        cached = cached_tokens(server, prompt)
        assert cached <= length - 1 and cached % BLOCK_SIZE == 0
        assert cached == (length - 1) // BLOCK_SIZE * BLOCK_SIZE
        assert outcome(server, prompt) == first == outcome(uncached, prompt)
        longer = [*prompt, 77]
        assert outcome(server, longer) == outcome(uncached, longer)
        assert cached_tokens(uncached, prompt) == 0


def test_f36_branch_and_shrink(server: RealServer, uncached: RealServer) -> None:
    turns = [prompt_of(37, 900), prompt_of(23, 901), prompt_of(41, 902)]
    other = prompt_of(30, 903)
    conversations = [
        turns[0],
        turns[0] + turns[1],
        turns[0] + turns[1] + turns[2],
        turns[0],
        turns[0] + turns[1] + other,
    ]
    for conversation in conversations:
        assert outcome(server, conversation) == outcome(uncached, conversation)


@pytest.mark.parametrize("caching", [True, False])
@pytest.mark.parametrize("isa", ["portable", "avx2", "avx_vnni", "avx512_vnni"])
def test_f37_batched_equals_single(model_folder: Path, isa: str, caching: bool) -> None:
    from headrace import _native

    if isa not in _native.available_isas():
        pytest.skip(f"this CPU has no {isa}")
    flags = ["--isa", isa, *([] if caching else ["--no-enable-prefix-caching"])]
    numbers = (41, 913, 768, 9687, 8578)
    with RealServer(model_folder, *flags) as server:
        texts = [f"Memorize: the code is cobalt fig {number}. What is the code?" for number in numbers]
        prompts = [server.post("/tokenize", {"prompt": text}).json()["tokens"] for text in texts]
        alone = [outcome(server, prompt, max_tokens=16) for prompt in prompts]
        with concurrent.futures.ThreadPoolExecutor(len(prompts)) as pool:
            together = list(pool.map(lambda prompt: outcome(server, prompt, max_tokens=16), prompts))
        assert together == alone
        body = {"prompt": prompts, "max_tokens": 16, "logprobs": 5, "ignore_eos": True, "return_token_ids": True}
        one_request = server.complete(**body).json()["choices"]
        assert [c["token_ids"] for c in one_request] == [ids for ids, _, _ in alone]
        assert [c["logprobs"]["token_logprobs"] for c in one_request] == [values for _, values, _ in alone]


def test_seeded_sampling_is_the_same_alone_and_in_a_crowd(server: RealServer) -> None:
    prompts = [prompt_of(20 + i, 700 + i) for i in range(6)]

    def run(prompt: list[int]) -> Any:
        return outcome(server, prompt, temperature=1.5, seed=11, top_p=0.95, top_k=50, max_tokens=24)

    alone = [run(prompt) for prompt in prompts]
    with concurrent.futures.ThreadPoolExecutor(len(prompts)) as pool:
        assert list(pool.map(run, prompts)) == alone
