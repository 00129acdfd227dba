from __future__ import annotations

import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.cache import ContentSpan, PrefixChain, PrefixKeys

token_lists = st.lists(st.integers(0, 2**31 - 1), max_size=100)


def chain_of(token_ids: list[int], keys: PrefixKeys | None = None, block_size: int = 16) -> PrefixChain:
    chain = PrefixChain(keys or PrefixKeys(), block_size)
    chain.extend(token_ids)
    return chain


def digests(chain: PrefixChain) -> list[bytes]:
    return [chain.block(index)[0] for index in range(len(chain))]


def test_a_digest_is_the_same_in_another_process() -> None:
    code = (
        "from headrace.cache import PrefixChain, PrefixKeys;"
        "c = PrefixChain(PrefixKeys(salt='s'), 16); c.extend(range(32)); print(c.block(1)[0].hex())"
    )
    command = [sys.executable, "-c", code]
    there = subprocess.run(command, capture_output=True, text=True, check=True, env={"PYTHONPATH": ":".join(sys.path)})
    assert there.stdout.strip() == chain_of(list(range(32)), PrefixKeys(salt="s")).block(1)[0].hex()


@given(token_lists, st.data())
def test_growing_token_by_token_gives_the_chain_of_the_whole(token_ids: list[int], data: st.DataObject) -> None:
    grown = chain_of([])
    end = 0
    while end < len(token_ids):
        end = data.draw(st.integers(end + 1, len(token_ids)))
        grown.extend(token_ids[:end])
    assert digests(grown) == digests(chain_of(token_ids))
    assert len(grown) == len(token_ids) // 16


@given(token_lists, token_lists)
def test_equal_digests_mean_equal_prefixes(a: list[int], b: list[int]) -> None:
    for index, (left, right) in enumerate(zip(digests(chain_of(a)), digests(chain_of(b)), strict=False)):
        end = 16 * (index + 1)
        assert (left == right) == (a[:end] == b[:end])


@pytest.mark.parametrize(
    "keys",
    [
        PrefixKeys(salt="a"),
        PrefixKeys(salt=""),
        PrefixKeys(adapter="a"),
        PrefixKeys(weights="a"),
        PrefixKeys(content=(ContentSpan(3, 5, b"image"),)),
    ],
)
def test_every_extra_key_makes_another_prefix(keys: PrefixKeys) -> None:
    tokens = list(range(48))
    assert not set(digests(chain_of(tokens, keys))) & set(digests(chain_of(tokens)))


def test_content_counts_from_the_block_it_reaches_into_and_by_its_place() -> None:
    tokens = [0] * 64
    plain = digests(chain_of(tokens))
    spanning = digests(chain_of(tokens, PrefixKeys(content=(ContentSpan(20, 40, b"image"),))))
    moved = digests(chain_of(tokens, PrefixKeys(content=(ContentSpan(21, 41, b"image"),))))
    assert spanning[0] == plain[0] == moved[0]
    assert len({*plain[1:], *spanning[1:], *moved[1:]}) == 9


def test_a_wider_group_finds_its_blocks_by_the_chain_of_the_narrower_one() -> None:
    chain = chain_of(list(range(64)))
    key, tokens = chain.block(1, span=2)
    assert key == chain.block(3)[0]
    assert tokens == chain.block(2)[1] + chain.block(3)[1]


def test_a_copy_grows_on_its_own() -> None:
    chain = chain_of(list(range(40)))
    twin = chain.copy(20)
    assert len(twin) == 1
    twin.extend([*range(20), *[5] * 12])
    assert twin.block(0) == chain.block(0)
    assert twin.block(1) != chain.block(1)
    assert len(chain) == 2
