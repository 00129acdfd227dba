from __future__ import annotations

import pytest

from headrace.cache import NULL_BLOCK, BlockPool, BlockState, IntegrityError


def pool_with_contents(count: int) -> tuple[BlockPool, list[int]]:
    """All blocks taken and registered as contents 0, 1, …"""
    pool = BlockPool(count + 1)
    blocks = pool.take(count)
    for number, block in enumerate(blocks):
        pool.register(block, *name(number))
    return pool, blocks


def name(number: int) -> tuple[bytes, bytes]:
    return f"key {number}".encode(), f"tokens {number}".encode()


def test_the_null_block_is_never_handed_out() -> None:
    pool = BlockPool(5)
    assert pool.num_usable == pool.num_free == 4
    assert sorted(pool.take(4)) == [1, 2, 3, 4]
    assert NULL_BLOCK not in pool.take(0)


def test_taking_more_than_is_free_is_refused() -> None:
    pool = BlockPool(3)
    with pytest.raises(IntegrityError, match="3 blocks asked for, 2 are free"):
        pool.take(3)


def test_contents_are_found_until_their_block_is_handed_out_again() -> None:
    pool, blocks = pool_with_contents(2)
    pool.release(blocks)
    assert pool.num_free == 2
    assert pool.find(*name(0)) == blocks[0]
    pool.take(2)
    assert pool.find(*name(0)) is None
    assert pool.num_evictions == 2


def test_token_ids_are_compared_and_not_only_digests() -> None:
    pool, blocks = pool_with_contents(1)
    key, tokens = name(0)
    assert pool.find(key, b"other tokens") is None
    assert pool.find(key, tokens) == blocks[0]


def test_a_table_is_given_up_from_its_tail() -> None:
    pool, blocks = pool_with_contents(3)
    pool.release(blocks)
    assert pool.take(1) == [blocks[2]]
    assert pool.take(1) == [blocks[1]]


def test_the_least_recently_freed_contents_go_first() -> None:
    pool, blocks = pool_with_contents(3)
    for block in (blocks[1], blocks[0], blocks[2]):
        pool.release([block])
    pool.share([blocks[1]])  # a hit makes it the most recent again
    pool.release([blocks[1]])
    assert [pool.take(1)[0] for _ in range(3)] == [blocks[0], blocks[2], blocks[1]]


def test_blocks_without_contents_are_used_before_new_ones_and_new_ones_before_reusable_ones() -> None:
    pool = BlockPool(5)
    reusable, blank = pool.take(2)
    pool.register(reusable, *name(0))
    pool.release([reusable])
    pool.release([blank])
    assert pool.take(1) == [blank]
    assert pool.take(2) == [3, 4]
    assert pool.num_evictions == 0
    assert pool.take(1) == [reusable]
    assert pool.num_evictions == 1


def test_a_shared_block_is_free_after_its_last_owner() -> None:
    pool, (block,) = pool_with_contents(1)
    pool.share([block])
    pool.release([block])
    assert pool.state(block) is BlockState.OWNED
    pool.release([block])
    assert pool.state(block) is BlockState.FREE
    with pytest.raises(IntegrityError, match="nobody owns it"):
        pool.release([block])


def test_of_two_blocks_with_equal_contents_the_first_stays_findable() -> None:
    pool = BlockPool(3)
    first, second = pool.take(2)
    pool.register(first, *name(0))
    pool.register(second, *name(0))
    assert pool.find(*name(0)) == first
    pool.release([second])
    assert pool.find(*name(0)) == first
    pool.check_integrity({first: 1})


def test_a_block_that_is_loading_cannot_be_found_and_returns_when_loaded() -> None:
    pool, (block,) = pool_with_contents(1)
    pool.begin_load(block)
    assert pool.state(block) is BlockState.LOADING
    assert pool.find(*name(0)) is None
    pool.release([block])
    assert pool.num_free == 0
    pool.end_load(block)
    assert pool.num_free == 1
    assert pool.find(*name(0)) == block
    with pytest.raises(IntegrityError, match="not loading"):
        pool.end_load(block)


def test_a_block_that_is_being_sent_is_not_handed_out_but_can_be_hit() -> None:
    pool, (block,) = pool_with_contents(1)
    pool.begin_send(block)
    pool.release([block])
    assert pool.state(block) is BlockState.SENDING
    assert pool.num_free == 0
    assert pool.find(*name(0)) == block
    pool.share([block])
    pool.end_send(block)
    assert pool.state(block) is BlockState.OWNED
    pool.release([block])
    assert pool.num_free == 1


def test_transfers_start_only_on_owned_blocks() -> None:
    pool, (block,) = pool_with_contents(1)
    pool.release([block])
    with pytest.raises(IntegrityError, match="is free"):
        pool.begin_send(block)
    with pytest.raises(IntegrityError, match="is free"):
        pool.begin_load(block)
    with pytest.raises(IntegrityError, match="not being sent"):
        pool.end_send(block)


@pytest.mark.parametrize("num_owners", [{}, {1: 2}, {1: 1, 2: 1}, {0: 1, 1: 1}])
def test_books_that_do_not_balance_are_noticed(num_owners: dict[int, int]) -> None:
    pool = BlockPool(4)
    assert pool.take(1) == [1]
    pool.check_integrity({1: 1})
    with pytest.raises(IntegrityError):
        pool.check_integrity(num_owners)
