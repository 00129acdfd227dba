"""LayerGroupSpec: the one place where KV bytes and KV layout are computed."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from headrace.core.errors import ConfigError

BLOCK_TOKENS_MULTIPLE = 16
"""K is tiled by 16 tokens for the ISA's dot product, so a block is a whole number of tiles."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerGroupSpec:
    """Layers whose KV has one shape and one block table.

    A block's elements are contiguous, ordered [layer][head][K tile | V tile]: outermost layer, so that a
    whole block is one transfer; then head, so that a shard of heads is one stride. The K tile is
    [block_size / 16][head_dim][16 tokens], the V tile [block_size][head_dim]. Strides count elements and are
    the fields of `KvGroup` in native/include/plan.h.

    kind: "full" keeps every token. "sliding" (the last so many tokens; blocks that left the window become
    the null block), "state" (one recurrent state per sequence) and "latent" (one compressed vector per
    token, no heads) are names reserved for groups this version cannot build.

    Raises ConfigError for a kind without an implementation or a size out of range.
    """

    kind: str = "full"
    num_layers: int
    num_kv_heads: int
    head_dim: int
    block_size: int = 16
    """Tokens per block."""
    element_bytes: int = 4

    def __post_init__(self) -> None:
        if self.kind != "full":
            raise ConfigError(f"layer groups of kind {self.kind!r} are not supported yet; only 'full' is")
        for name in ("num_layers", "num_kv_heads", "head_dim", "element_bytes"):
            if getattr(self, name) < 1:
                raise ConfigError(f"{name} of a layer group must be at least 1, got {getattr(self, name)}")
        if self.block_size < 1 or self.block_size % BLOCK_TOKENS_MULTIPLE:
            raise ConfigError(
                f"block_size must be a positive multiple of {BLOCK_TOKENS_MULTIPLE} tokens, got {self.block_size}",
                param="block_size",
            )

    @property
    def v_offset(self) -> int:
        """Elements from a head's K tile to its V tile."""
        return self.block_size * self.head_dim

    @property
    def head_stride(self) -> int:
        return 2 * self.v_offset

    @property
    def layer_stride(self) -> int:
        return self.num_kv_heads * self.head_stride

    @property
    def block_stride(self) -> int:
        return self.num_layers * self.layer_stride

    @property
    def bytes_per_block(self) -> int:
        return self.block_stride * self.element_bytes

    @property
    def bytes_per_token(self) -> int:
        return self.bytes_per_block // self.block_size

    def blocks_needed(self, num_tokens: int) -> int:
        """Table entries of a sequence whose first `num_tokens` tokens are in the cache."""
        return -(-num_tokens // self.block_size)

    def longest_hit(self, num_blocks: int, find: Callable[[int], int | None]) -> list[int]:
        """The block table of the longest reusable prefix of at most `num_blocks` blocks.

        `find(i)` gives the block that holds the i-th block of tokens, or None. Full attention reads every
        earlier token, so the hit ends at the first block that is missing.
        """
        table: list[int] = []
        for index in range(num_blocks):
            block = find(index)
            if block is None:
                break
            table.append(block)
        return table
