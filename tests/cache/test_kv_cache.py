from __future__ import annotations

from collections.abc import Iterator

import pytest

from headrace.cache import BlockOwner, IntegrityError, KVCache, PrefixKeys
from headrace.core.errors import CapacityError
from headrace.core.schedule import BlockCopy
from tests.scheduler.mock_model import make_cache


@pytest.fixture
def cache() -> Iterator[KVCache]:
    cache = make_cache(8)
    yield cache
    cache.check_integrity()


def hold(cache: KVCache, token_ids: list[int], salt: str | None = None, num_computed: int | None = None) -> BlockOwner:
    """An owner of all of `token_ids`, whose blocks can be hit up to `num_computed`."""
    owner = cache.allocate(cache.new_chain(PrefixKeys(salt=salt)), token_ids, len(token_ids) - 1)
    assert owner is not None
    cache.commit(owner, token_ids, len(token_ids) if num_computed is None else num_computed)
    return owner


def cached_tokens(cache: KVCache, token_ids: list[int], salt: str | None = None) -> int:
    return cache.lookup(cache.new_chain(PrefixKeys(salt=salt)), token_ids, len(token_ids) - 1).num_tokens


@pytest.mark.parametrize("length", [15, 16, 17, 31, 32, 33, 47, 48, 49])
def test_a_hit_is_whole_blocks_and_leaves_a_token_to_compute(cache: KVCache, length: int) -> None:
    hold(cache, list(range(length)))
    assert cached_tokens(cache, list(range(length))) == (length - 1) // 16 * 16
    assert cached_tokens(cache, list(range(length + 1))) == length // 16 * 16


def test_blocks_in_use_are_shared_and_not_copied(cache: KVCache) -> None:
    first = hold(cache, list(range(40)))
    second = hold(cache, list(range(35)))
    assert second.num_cached_tokens == 32
    assert second.tables[0][:2] == first.tables[0][:2]
    assert cache.num_free_blocks == 8 - 3 - 1


def test_only_committed_tokens_can_be_hit(cache: KVCache) -> None:
    hold(cache, list(range(48)), num_computed=31)
    assert cached_tokens(cache, list(range(48))) == 16


def test_released_prefixes_stay_until_their_blocks_are_needed(cache: KVCache) -> None:
    cache.release(hold(cache, list(range(64))))
    assert cache.num_free_blocks == 8
    assert cached_tokens(cache, list(range(64))) == 48
    hold(cache, [99] * 16 * 6)
    assert cache.num_evictions == 2
    assert cached_tokens(cache, list(range(64))) == 32  # the tail went first


def test_another_salt_shares_nothing(cache: KVCache) -> None:
    hold(cache, list(range(32)), salt="a")
    assert [cached_tokens(cache, list(range(32)), salt) for salt in ("a", "b", "", None)] == [16, 0, 0, 0]


def test_without_prefix_caching_nothing_is_found() -> None:
    cache = make_cache(8, enable_prefix_caching=False)
    hold(cache, list(range(32)))
    assert cached_tokens(cache, list(range(32))) == 0
    cache.check_integrity()


def test_allocation_is_all_or_nothing(cache: KVCache) -> None:
    owner = hold(cache, list(range(16 * 6)))
    chain = cache.new_chain()
    assert cache.allocate(chain, [7] * 16 * 3, 0) is None
    assert cache.num_free_blocks == 2
    assert not cache.append(owner, 16 * 9)
    assert cache.num_free_blocks == 2
    assert cache.append(owner, 16 * 8)
    assert cache.num_free_blocks == 0


def test_a_free_block_that_is_hit_is_not_also_counted_as_room(cache: KVCache) -> None:
    cache.release(hold(cache, list(range(16 * 4))))
    hold(cache, [99] * 16 * 4)
    token_ids = [*range(16 * 4), 5]  # 4 blocks hit, all of them free, and one more that does not exist
    assert cache.num_free_blocks == 4
    assert not cache.fits(cache.new_chain(), token_ids, len(token_ids) - 1)
    assert cache.allocate(cache.new_chain(), token_ids, len(token_ids) - 1) is None
    assert cache.num_free_blocks == 4


def test_what_fits_after_a_release_is_told_before_it(cache: KVCache) -> None:
    owner = hold(cache, list(range(16 * 6)))
    assert not cache.fits(cache.new_chain(), [7] * 48, 0)
    assert cache.fits(cache.new_chain(), [7] * 48, 0, releasing=[owner])
    assert not cache.fits(cache.new_chain(), [7] * 16 * 9, 0, releasing=[owner])


def test_growth_is_told_once_and_in_order(cache: KVCache) -> None:
    owner = hold(cache, list(range(20)))
    assert owner.take_growth() == ((0,), (owner.tables[0],))
    assert owner.take_growth() == ((2,), ([],))
    cache.append(owner, 33)
    assert owner.take_growth() == ((2,), (owner.tables[0][2:],))
    assert owner.take_growth() == ((3,), ([],))


def test_a_fork_shares_full_blocks_and_copies_the_partial_one(cache: KVCache) -> None:
    owner = hold(cache, list(range(40)))
    fork = cache.fork(owner, 40)
    assert fork is not None
    source, target = owner.tables[0][2], fork.owner.tables[0][2]
    assert source != target
    assert fork.copies == [BlockCopy(group=0, source=source, target=target)]
    assert fork.owner.tables[0][:2] == owner.tables[0][:2]
    cache.release(owner)
    cache.check_integrity()
    cache.commit(fork.owner, [*range(40), *range(8)], 48)
    assert cached_tokens(cache, [*range(40), *range(8), 1]) == 48


def test_a_fork_at_a_block_boundary_copies_nothing_and_needs_no_room() -> None:
    cache = make_cache(2)
    owner = hold(cache, list(range(32)))
    fork = cache.fork(owner, 32)
    assert fork is not None
    assert fork.copies == []
    assert cache.fork(owner, 31) is None
    cache.check_integrity()


def test_blocks_are_released_exactly_once(cache: KVCache) -> None:
    owner = hold(cache, list(range(32)))
    cache.release(owner)
    with pytest.raises(IntegrityError, match="twice"):
        cache.release(owner)


def test_groups_of_different_block_sizes_hit_where_both_can() -> None:
    cache = make_cache(8, 4, block_sizes=(16, 32))
    owner = hold(cache, list(range(90)), num_computed=80)
    assert [len(table) for table in owner.tables] == [6, 3]
    assert cached_tokens(cache, list(range(90))) == 64  # 80 of the first group, 64 of the second
    assert cached_tokens(cache, list(range(64))) == 32
    cache.check_integrity()


def test_the_longest_sequence_is_bounded_by_the_smallest_group() -> None:
    assert make_cache(8, 2, block_sizes=(16, 32)).max_tokens == 64


def test_a_cache_without_a_usable_block_is_refused() -> None:
    with pytest.raises(CapacityError, match="null block"):
        make_cache(0)
