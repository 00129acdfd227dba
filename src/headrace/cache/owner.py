"""BlockOwner: one sequence's blocks in all layer groups, taken together and given back exactly once."""

from __future__ import annotations

from typing import NamedTuple

from headrace.cache.prefix import PrefixChain


class TableGrowth(NamedTuple):
    """What was appended to a sequence's block tables, per layer group."""

    start: tuple[int, ...]
    """Index in the table of the first new id."""
    block_ids: tuple[list[int], ...]


class BlockOwner:
    """The handle that KVCache gives out and takes back; only KVCache changes it.

    tables: per layer group, block ids in the order of the tokens.
    capacity: tokens the tables have room for.
    num_cached_tokens: tokens that were found in the cache at allocation; they need not be computed.
    """

    __slots__ = (
        "_announced_capacity",
        "_unchanged",
        "capacity",
        "chain",
        "is_released",
        "num_cached_tokens",
        "num_committed",
        "tables",
    )

    def __init__(self, chain: PrefixChain, tables: tuple[list[int], ...], num_cached_tokens: int) -> None:
        self.chain = chain
        self.tables = tables
        self.capacity = 0
        self.num_cached_tokens = num_cached_tokens
        self.num_committed = num_cached_tokens
        """Leading tokens whose blocks have been offered to the prefix index."""
        self.is_released = False
        self._announced_capacity = 0
        self._unchanged = TableGrowth(tuple(0 for _ in tables), tuple([] for _ in tables))

    def take_growth(self) -> TableGrowth:
        """The table entries appended since the last call: what the row's tables must be told before a step."""
        if self.capacity == self._announced_capacity:  # nothing new, as in most decode steps
            return self._unchanged
        start = self._unchanged.start
        self._announced_capacity = self.capacity
        self._unchanged = TableGrowth(tuple(len(table) for table in self.tables), tuple([] for _ in self.tables))
        return TableGrowth(start, tuple(table[begin:] for table, begin in zip(self.tables, start, strict=True)))
