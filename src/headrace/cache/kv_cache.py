"""KVCache: block pools of all layer groups behind one door; a sequence gets all of its blocks or none."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from headrace.cache.integrity import IntegrityError, require
from headrace.cache.owner import BlockOwner
from headrace.cache.pool import BlockPool
from headrace.cache.prefix import NO_KEYS, PrefixChain, PrefixKeys
from headrace.cache.spec import LayerGroupSpec
from headrace.core.errors import CapacityError
from headrace.core.schedule import BlockCopy


class PrefixHit(NamedTuple):
    """The longest prefix that every layer group can serve. Holds nothing: true until the cache changes."""

    num_tokens: int
    tables: tuple[list[int], ...]


class Fork(NamedTuple):
    """A second owner of a sequence's first tokens, and the copies to run before its next step."""

    owner: BlockOwner
    copies: list[BlockCopy]


class KVCache:
    """Who holds which block of which layer group, and which prefixes need not be computed again.

    specs: the layer groups; num_blocks: blocks of each, the null block included.
    Raises CapacityError when a group has no usable block.
    """

    def __init__(
        self, specs: Sequence[LayerGroupSpec], num_blocks: Sequence[int], *, enable_prefix_caching: bool = True
    ) -> None:
        for spec, count in zip(specs, num_blocks, strict=True):
            if count < 2:
                raise CapacityError(f"a KV cache needs a null block and one more of {spec.block_size} tokens")
        self.specs = tuple(specs)
        self.pools = tuple(BlockPool(count) for count in num_blocks)
        self.enable_prefix_caching = enable_prefix_caching
        self._chain_block_size = math.gcd(*(spec.block_size for spec in specs))
        self._owners: set[BlockOwner] = set()

    @property
    def num_owners(self) -> int:
        """Sequences that hold blocks."""
        return len(self._owners)

    @property
    def num_usable_blocks(self) -> int:
        return sum(pool.num_usable for pool in self.pools)

    @property
    def num_free_blocks(self) -> int:
        """Blocks that can be handed out, those with reusable contents included."""
        return sum(pool.num_free for pool in self.pools)

    @property
    def num_evictions(self) -> int:
        """Blocks whose reusable contents were given up for new ones, since the start."""
        return sum(pool.num_evictions for pool in self.pools)

    @property
    def max_tokens(self) -> int:
        """Tokens of the longest sequence that fits when it is alone."""
        return min(p.num_usable * s.block_size for p, s in zip(self.pools, self.specs, strict=True))

    def new_chain(self, keys: PrefixKeys = NO_KEYS) -> PrefixChain:
        """An empty chain for a new sequence, to be kept as long as the sequence lives."""
        return PrefixChain(keys, self._chain_block_size)

    def lookup(self, chain: PrefixChain, token_ids: Sequence[int], limit: int) -> PrefixHit:
        """The longest cached prefix of `token_ids` of at most `limit` tokens; it ends at a block end of every group."""
        num_tokens = limit if self.enable_prefix_caching else 0
        if num_tokens > 0:
            chain.extend(token_ids)
        while num_tokens > 0:
            tables = tuple(self._longest_hit(group, chain, num_tokens) for group in range(len(self.specs)))
            served = min(len(table) * spec.block_size for table, spec in zip(tables, self.specs, strict=True))
            if served == num_tokens:
                return PrefixHit(num_tokens, tables)
            num_tokens = served  # ask again: what the weakest group can serve must suit the others too
        return PrefixHit(0, tuple([] for _ in self.specs))

    def _longest_hit(self, group: int, chain: PrefixChain, num_tokens: int) -> list[int]:
        spec, pool = self.specs[group], self.pools[group]
        span = spec.block_size // chain.block_size
        return spec.longest_hit(num_tokens // spec.block_size, lambda index: pool.find(*chain.block(index, span)))

    def fits(
        self, chain: PrefixChain, token_ids: Sequence[int], hit_limit: int, releasing: Iterable[BlockOwner] = ()
    ) -> bool:
        """Whether `allocate` with these arguments would succeed, at best, once `releasing` have been released."""
        spare = [pool.num_free for pool in self.pools]
        for owner in releasing:
            spare = [n + len(table) for n, table in zip(spare, owner.tables, strict=True)]
        needed = self._blocks_to_take(self.lookup(chain, token_ids, hit_limit), len(token_ids))
        return all(n <= s for n, s in zip(needed, spare, strict=True))

    def allocate(self, chain: PrefixChain, token_ids: Sequence[int], hit_limit: int) -> BlockOwner | None:
        """Room for all of `token_ids`, their cached prefix of at most `hit_limit` tokens shared; None if none."""
        hit = self.lookup(chain, token_ids, hit_limit)
        needed = self._blocks_to_take(hit, len(token_ids))
        if any(n > pool.num_free for n, pool in zip(needed, self.pools, strict=True)):
            return None
        for pool, table in zip(self.pools, hit.tables, strict=True):
            pool.share(table)
        owner = BlockOwner(chain, hit.tables, hit.num_tokens)
        self._owners.add(owner)
        if not self.append(owner, len(token_ids)):
            raise IntegrityError("blocks that were counted as free could not be taken")
        return owner

    def _blocks_to_take(self, hit: PrefixHit, num_tokens: int) -> list[int]:
        """Per group, by how much allocating would lower the number of free blocks."""
        return [
            spec.blocks_needed(num_tokens) - len(table) + pool.num_taken_by_sharing(table)
            for spec, pool, table in zip(self.specs, self.pools, hit.tables, strict=True)
        ]

    def append(self, owner: BlockOwner, num_tokens: int) -> bool:
        """Make room for the first `num_tokens` tokens in every group; False, and no change, if there is none."""
        if num_tokens <= owner.capacity:
            return True
        missing = [s.blocks_needed(num_tokens) - len(t) for s, t in zip(self.specs, owner.tables, strict=True)]
        if any(n > pool.num_free for n, pool in zip(missing, self.pools, strict=True)):
            return False
        for pool, table, count in zip(self.pools, owner.tables, missing, strict=True):
            table.extend(pool.take(max(count, 0)))
        owner.capacity = min(len(t) * s.block_size for t, s in zip(owner.tables, self.specs, strict=True))
        return True

    def commit(self, owner: BlockOwner, token_ids: Sequence[int], num_tokens: int) -> None:
        """The first `num_tokens` of `token_ids` are computed by the steps scheduled so far: others may hit them."""
        size = self._chain_block_size
        if num_tokens // size <= owner.num_committed // size or not self.enable_prefix_caching:
            return
        owner.chain.extend(token_ids)
        for spec, pool, table in zip(self.specs, self.pools, owner.tables, strict=True):
            span = spec.block_size // size
            for index in range(owner.num_committed // spec.block_size, num_tokens // spec.block_size):
                pool.register(table[index], *owner.chain.block(index, span))
        owner.num_committed = num_tokens

    def fork(self, owner: BlockOwner, num_tokens: int) -> Fork | None:
        """A second owner of the first `num_tokens` tokens, all computed; None if there is no room.

        Full blocks are shared: nobody writes them again. A block that is filled only in part is copied.
        """
        partial = [num_tokens % spec.block_size != 0 for spec in self.specs]
        if any(is_partial and not pool.num_free for is_partial, pool in zip(partial, self.pools, strict=True)):
            return None
        tables: list[list[int]] = []
        copies: list[BlockCopy] = []
        for group, (spec, pool) in enumerate(zip(self.specs, self.pools, strict=True)):
            num_full = num_tokens // spec.block_size
            table = owner.tables[group][:num_full]
            pool.share(table)
            if partial[group]:
                table += pool.take(1)
                copies.append(BlockCopy(group, source=owner.tables[group][num_full], target=table[-1]))
            tables.append(table)
        child = BlockOwner(owner.chain.copy(num_tokens), tuple(tables), num_cached_tokens=0)
        child.num_committed = min(owner.num_committed, num_tokens)
        child.capacity = min(len(t) * s.block_size for t, s in zip(tables, self.specs, strict=True))
        self._owners.add(child)
        return Fork(child, copies)

    def release(self, owner: BlockOwner) -> None:
        """Give back everything the owner holds. Raises IntegrityError the second time."""
        require(not owner.is_released, "an owner's blocks are released twice")
        owner.is_released = True
        self._owners.remove(owner)
        for pool, table in zip(self.pools, owner.tables, strict=True):
            pool.release(table)

    def check_integrity(self) -> None:
        """Recount every block of every group against the owners' tables. Raises IntegrityError."""
        for group, pool in enumerate(self.pools):
            tables = [owner.tables[group] for owner in self._owners]
            require(all(len(set(table)) == len(table) for table in tables), "a table names a block twice")
            pool.check_integrity(Counter(block_id for table in tables for block_id in table))
