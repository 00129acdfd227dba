"""Random allocate, append, fork, release and evict: every owner always reads its own tokens through its tables."""

from __future__ import annotations

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from headrace.cache import BlockOwner, PrefixKeys
from tests.scheduler.mock_model import make_cache

token_lists = st.builds(
    lambda stem, length, tail: [(stem + i) % 3 for i in range(length)] + tail,
    st.integers(0, 2),
    st.integers(1, 80),
    st.lists(st.integers(0, 2), max_size=3),
)


class Holder:
    def __init__(self, owner: BlockOwner, tokens: list[int], salt: str | None) -> None:
        self.owner, self.tokens, self.salt = owner, tokens, salt


class KVCacheMachine(RuleBasedStateMachine):
    """`memory` holds (salt, token) per slot: what a step would have written there."""

    @initialize(
        num_blocks=st.integers(2, 12),
        sizes=st.sampled_from([(16,), (16, 16), (16, 32), (48, 32)]),
        enable_prefix_caching=st.sampled_from([True, True, True, False]),
    )
    def start(self, num_blocks: int, sizes: tuple[int, ...], enable_prefix_caching: bool) -> None:
        counts = [num_blocks] * len(sizes)
        self.cache = make_cache(*counts, block_sizes=sizes, enable_prefix_caching=enable_prefix_caching)
        self.memory: dict[tuple[int, int, int], tuple[str | None, int]] = {}
        self.holders: list[Holder] = []

    def place(self, owner: BlockOwner, group: int, position: int) -> tuple[int, int, int]:
        index, slot = divmod(position, self.cache.specs[group].block_size)
        return group, owner.tables[group][index], slot

    def compute(self, holder: Holder, start: int) -> None:
        for group in range(len(self.cache.specs)):
            for position in range(start, len(holder.tokens)):
                self.memory[self.place(holder.owner, group, position)] = (holder.salt, holder.tokens[position])
        self.cache.commit(holder.owner, holder.tokens, len(holder.tokens))

    @rule(tokens=token_lists, salt=st.sampled_from([None, "a"]))
    def allocate(self, tokens: list[int], salt: str | None) -> None:
        chain = self.cache.new_chain(PrefixKeys(salt=salt))
        free_before = self.cache.num_free_blocks
        could = self.cache.fits(chain, tokens, len(tokens) - 1)
        owner = self.cache.allocate(chain, tokens, len(tokens) - 1)
        assert (owner is not None) == could
        if owner is None:
            assert self.cache.num_free_blocks == free_before
            return
        assert owner.num_cached_tokens < len(tokens) <= owner.capacity
        assert all(owner.num_cached_tokens % spec.block_size == 0 for spec in self.cache.specs)
        holder = Holder(owner, tokens, salt)
        self.holders.append(holder)
        self.compute(holder, owner.num_cached_tokens)

    @precondition(lambda self: self.holders)
    @rule(data=st.data(), more=st.lists(st.integers(0, 2), min_size=1, max_size=40))
    def append(self, data: st.DataObject, more: list[int]) -> None:
        holder = data.draw(st.sampled_from(self.holders))
        if self.cache.append(holder.owner, len(holder.tokens) + len(more)):
            start = len(holder.tokens)
            holder.tokens = holder.tokens + more
            self.compute(holder, start)

    @precondition(lambda self: self.holders)
    @rule(data=st.data())
    def fork(self, data: st.DataObject) -> None:
        parent = data.draw(st.sampled_from(self.holders))
        num_tokens = data.draw(st.integers(1, len(parent.tokens)))
        fork = self.cache.fork(parent.owner, num_tokens)
        if fork is None:
            return
        for copy in fork.copies:
            for slot in range(self.cache.specs[copy.group].block_size):
                if (copy.group, copy.source, slot) in self.memory:
                    self.memory[copy.group, copy.target, slot] = self.memory[copy.group, copy.source, slot]
        self.holders.append(Holder(fork.owner, parent.tokens[:num_tokens], parent.salt))

    @precondition(lambda self: self.holders)
    @rule(data=st.data())
    def release(self, data: st.DataObject) -> None:
        holder = data.draw(st.sampled_from(self.holders))
        self.holders.remove(holder)
        self.cache.release(holder.owner)

    @invariant()
    def everybody_reads_their_own_tokens(self) -> None:
        for holder in getattr(self, "holders", []):
            for group in range(len(self.cache.specs)):
                read = [self.memory[self.place(holder.owner, group, p)] for p in range(len(holder.tokens))]
                assert read == [(holder.salt, token) for token in holder.tokens]

    @invariant()
    def books_balance(self) -> None:
        if hasattr(self, "cache"):
            self.cache.check_integrity()
            for group, pool in enumerate(self.cache.pools):
                held = {block for holder in self.holders for block in holder.owner.tables[group]}
                assert pool.num_free == pool.num_usable - len(held)

    def teardown(self) -> None:
        if hasattr(self, "cache"):
            for holder in self.holders:
                self.cache.release(holder.owner)
            self.cache.check_integrity()
            assert self.cache.num_free_blocks == self.cache.num_usable_blocks


TestKVCacheMachine = KVCacheMachine.TestCase
TestKVCacheMachine.settings = settings(max_examples=60, stateful_step_count=25, deadline=None)
