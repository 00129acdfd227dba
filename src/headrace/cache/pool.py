"""BlockPool: the blocks of one layer group, who holds them, and which contents can be found again."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum

from headrace.cache.integrity import require

NULL_BLOCK = 0
"""The block that padding and out-of-window table entries name; never handed out, its contents never matter."""


class BlockState(Enum):
    """What a block is doing."""

    FREE = "free"
    """Nobody holds it. It may still be found by its contents until it is handed out again."""
    OWNED = "owned"
    """At least one sequence has it in its table."""
    LOADING = "loading"
    """Owned, and a transfer is still writing it: not to be read, so not to be found."""
    SENDING = "sending"
    """Nobody holds it, but a transfer is still reading it: not to be handed out."""


@dataclass(slots=True)
class Block:
    """One block's books. The state follows from them, so it cannot disagree with them."""

    id: int
    num_owners: int = 0
    num_sends: int = 0
    is_loading: bool = False
    key: bytes | None = None
    """Digest its contents are found by; None while they are incomplete or a twin is registered already."""
    tokens: bytes = b""
    """Packed token ids behind `key`, compared on a hit."""

    @property
    def state(self) -> BlockState:
        if self.is_loading:
            return BlockState.LOADING
        if self.num_owners:
            return BlockState.OWNED
        return BlockState.SENDING if self.num_sends else BlockState.FREE


class BlockPool:
    """Hands out blocks and takes them back.

    Blocks are taken in the order of what is lost by it: free blocks without reusable contents (last freed
    first: their pages are resident), then blocks never used, then the least recently freed block that could
    still have been hit. All operations are O(1) per block.

    num_blocks counts the null block: ids run from 0 to num_blocks - 1.
    """

    def __init__(self, num_blocks: int) -> None:
        self.num_blocks = num_blocks
        self.num_evictions = 0
        self._blocks = [Block(NULL_BLOCK)]  # grows as blocks are first used
        self._blank: list[Block] = []
        self._reusable: OrderedDict[int, Block] = OrderedDict()  # oldest first
        self._index: dict[bytes, Block] = {}

    @property
    def num_usable(self) -> int:
        """Blocks that exist for sequences: all but the null block."""
        return self.num_blocks - 1

    @property
    def num_free(self) -> int:
        """Blocks that can be handed out now."""
        return len(self._blank) + (self.num_blocks - len(self._blocks)) + len(self._reusable)

    def state(self, block_id: int) -> BlockState:
        return self._blocks[block_id].state if block_id < len(self._blocks) else BlockState.FREE

    def take(self, count: int) -> list[int]:
        """Ids of `count` blocks for a new owner, their contents undefined. Needs `count` <= `num_free`."""
        require(count <= self.num_free, f"{count} blocks asked for, {self.num_free} are free")
        return [self._take_one().id for _ in range(count)]

    def _take_one(self) -> Block:
        if self._blank:
            block = self._blank.pop()
        elif len(self._blocks) < self.num_blocks:
            block = Block(len(self._blocks))
            self._blocks.append(block)
        else:
            _, block = self._reusable.popitem(last=False)
            self._forget(block)
            self.num_evictions += 1
        block.num_owners = 1
        return block

    def _forget(self, block: Block) -> None:
        if block.key is not None:
            del self._index[block.key]
            block.key, block.tokens = None, b""

    def share(self, block_ids: Iterable[int]) -> None:
        """One more owner for each block: a prefix hit or a fork."""
        for block_id in block_ids:
            block = self._blocks[block_id]
            self._reusable.pop(block_id, None)
            block.num_owners += 1

    def release(self, block_ids: Sequence[int]) -> None:
        """One owner less for each block of a table.

        Tail first: a prefix's last block is worth the least, and is useless once an earlier one is gone.
        """
        for block_id in reversed(block_ids):
            block = self._blocks[block_id]
            require(block.num_owners > 0, f"block {block_id} is released, but nobody owns it")
            block.num_owners -= 1
            self._park_if_free(block)

    def _park_if_free(self, block: Block) -> None:
        if block.state is not BlockState.FREE:
            return
        if block.key is None:
            self._blank.append(block)
        else:
            self._reusable[block.id] = block

    def num_taken_by_sharing(self, block_ids: Iterable[int]) -> int:
        """By how much `share(block_ids)` would lower `num_free`."""
        return sum(block_id in self._reusable for block_id in block_ids)

    def register(self, block_id: int, key: bytes, tokens: bytes) -> None:
        """From now on `find(key, tokens)` gives this block; of two blocks with equal contents the first stays.

        Allowed as soon as the step that fills the block is scheduled: in every layer KV is written before
        attention reads, and steps run in order.
        """
        block = self._blocks[block_id]
        require(block.num_owners > 0, f"block {block_id} is registered, but nobody owns it")
        if block.key is None and key not in self._index:
            block.key, block.tokens = key, tokens
            self._index[key] = block

    def find(self, key: bytes, tokens: bytes) -> int | None:
        """The block with these contents. Token ids are compared: a digest is a hint, not a proof."""
        block = self._index.get(key)
        if block is None or block.is_loading or block.tokens != tokens:
            return None
        return block.id

    def begin_load(self, block_id: int) -> None:
        """A transfer starts writing an owned block."""
        block = self._blocks[block_id]
        require(block.state is BlockState.OWNED, f"block {block_id} is {block.state.value}: it cannot start loading")
        block.is_loading = True

    def end_load(self, block_id: int) -> None:
        """The transfer has written the block; it is free if its owner has left meanwhile."""
        block = self._blocks[block_id]
        require(block.is_loading, f"block {block_id} is not loading")
        block.is_loading = False
        self._park_if_free(block)

    def begin_send(self, block_id: int) -> None:
        """A transfer starts reading an owned block; it stays readable when its owners leave."""
        block = self._blocks[block_id]
        require(block.state is BlockState.OWNED, f"block {block_id} is {block.state.value}: it cannot be sent")
        block.num_sends += 1

    def end_send(self, block_id: int) -> None:
        """The transfer has read the block."""
        block = self._blocks[block_id]
        require(block.num_sends > 0, f"block {block_id} is not being sent")
        block.num_sends -= 1
        self._park_if_free(block)

    def check_integrity(self, num_owners: Mapping[int, int]) -> None:
        """Recount everything against `num_owners`, block id → tables that name it. Raises IntegrityError."""
        blank = {block.id for block in self._blank}
        require(len(blank) == len(self._blank), "a block is twice in the blank list")
        require(NULL_BLOCK not in num_owners, "the null block is owned")
        for block in self._blocks[1:]:
            expected = num_owners.get(block.id, 0)
            require(block.num_owners == expected, f"block {block.id}: {block.num_owners} owners, {expected} tables")
            is_free = block.state is BlockState.FREE
            require((block.id in blank) == (is_free and block.key is None), f"block {block.id}: blank list is wrong")
            is_reusable = is_free and block.key is not None
            require((block.id in self._reusable) == is_reusable, f"block {block.id}: reusable list is wrong")
            if block.key is not None:
                require(self._index.get(block.key) is block, f"block {block.id} has a key, but is not found by it")
        require(all(b.key == key for key, b in self._index.items()), "the index names a block under a stale key")
        require(all(i < len(self._blocks) for i in num_owners), "a table names a block that was never handed out")
