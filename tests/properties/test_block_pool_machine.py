"""Random take, share, register, release, load, send and evict: the pool against a plain model of it."""

from __future__ import annotations

from collections import Counter

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from headrace.cache import BlockPool, BlockState

NUM_CONTENTS = 6


def name(content: int) -> tuple[bytes, bytes]:
    return f"key {content}".encode(), f"tokens {content}".encode()


class BlockPoolMachine(RuleBasedStateMachine):
    """Counts owners, loads and sends on its own; remembers what each block was last registered as."""

    @initialize(num_usable=st.integers(1, 8))
    def start(self, num_usable: int) -> None:
        self.num_usable = num_usable
        self.pool = BlockPool(num_usable + 1)
        self.owners: Counter[int] = Counter()
        self.sends: Counter[int] = Counter()
        self.loading: set[int] = set()
        self.contents: dict[int, int] = {}
        self.findable: dict[int, int] = {}

    def owned(self) -> list[int]:
        return sorted(+self.owners)

    def busy(self) -> set[int]:
        return set(+self.owners) | set(+self.sends) | self.loading

    @rule(count=st.integers(0, 4))
    def take(self, count: int) -> None:
        if count > self.pool.num_free:
            return
        blocks = self.pool.take(count)
        assert len(set(blocks)) == count
        assert not self.busy() & set(blocks)
        for block in blocks:
            self.owners[block] = 1
            content = self.contents.pop(block, None)  # overwritten from here on
            if self.findable.get(content) == block:
                del self.findable[content]

    @precondition(lambda self: self.owned())
    @rule(data=st.data(), content=st.integers(0, NUM_CONTENTS - 1))
    def register(self, data: st.DataObject, content: int) -> None:
        block = data.draw(st.sampled_from(self.owned()))
        content = self.contents.setdefault(block, content)
        self.pool.register(block, *name(content))
        self.findable.setdefault(content, block)

    @rule(content=st.integers(0, NUM_CONTENTS - 1))
    def hit(self, content: int) -> None:
        block = self.pool.find(*name(content))
        if block is not None:
            num_free, num_taken = self.pool.num_free, self.pool.num_taken_by_sharing([block])
            self.pool.share([block])
            self.owners[block] += 1
            assert self.pool.num_free == num_free - num_taken

    @precondition(lambda self: self.owned())
    @rule(data=st.data())
    def release(self, data: st.DataObject) -> None:
        blocks = data.draw(st.lists(st.sampled_from(self.owned()), unique=True))
        self.pool.release(blocks)
        self.owners.subtract(blocks)

    @precondition(lambda self: set(self.owned()) - self.loading)
    @rule(data=st.data(), loads=st.booleans())
    def begin_transfer(self, data: st.DataObject, loads: bool) -> None:
        block = data.draw(st.sampled_from(sorted(set(self.owned()) - self.loading)))
        if loads:
            self.pool.begin_load(block)
            self.loading.add(block)
        else:
            self.pool.begin_send(block)
            self.sends[block] += 1

    @precondition(lambda self: self.loading)
    @rule(data=st.data())
    def end_load(self, data: st.DataObject) -> None:
        block = data.draw(st.sampled_from(sorted(self.loading)))
        self.pool.end_load(block)
        self.loading.remove(block)

    @precondition(lambda self: +self.sends)
    @rule(data=st.data())
    def end_send(self, data: st.DataObject) -> None:
        block = data.draw(st.sampled_from(sorted(+self.sends)))
        self.pool.end_send(block)
        self.sends[block] -= 1

    @invariant()
    def books_balance(self) -> None:
        if hasattr(self, "pool"):
            self.pool.check_integrity(+self.owners)
            assert self.pool.num_free == self.num_usable - len(self.busy())
            for block in range(1, self.num_usable + 1):
                assert (self.pool.state(block) is BlockState.FREE) == (block not in self.busy())

    @invariant()
    def contents_are_found_exactly_while_a_block_holds_them(self) -> None:
        for content in range(NUM_CONTENTS if hasattr(self, "pool") else 0):
            block = self.findable.get(content)
            assert self.pool.find(*name(content)) == (None if block in self.loading else block)

    def teardown(self) -> None:
        if not hasattr(self, "pool"):
            return
        for block in sorted(self.loading):
            self.pool.end_load(block)
        for block in (+self.sends).elements():
            self.pool.end_send(block)
        for block in (+self.owners).elements():
            self.pool.release([block])
        self.pool.check_integrity({})
        assert self.pool.num_free == self.num_usable
        assert sorted(self.pool.take(self.num_usable)) == list(range(1, self.num_usable + 1))


TestBlockPoolMachine = BlockPoolMachine.TestCase
TestBlockPoolMachine.settings = settings(max_examples=100, stateful_step_count=30, deadline=None)
