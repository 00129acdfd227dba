"""The names of blocks' contents: a SHA-256 chain over a sequence's tokens and whatever else shaped its KV.

The digest of block i covers every token up to its end, so equal digests mean equal prefixes, in this process
and in any other one: the encoding is fixed and nothing is keyed by a random seed.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import sha256

CHAIN_VERSION = 1


@dataclass(frozen=True, slots=True)
class ContentSpan:
    """Positions [start, end) whose input is not told by their token ids: an image, prompt embeddings."""

    start: int
    end: int
    digest: bytes
    """Digest of the whole content, the same wherever the span lies."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PrefixKeys:
    """What must be equal, besides the token ids, before two sequences may share blocks."""

    salt: str | None = None
    """A tenant's secret: requests of different salts cannot even probe each other's prefixes by timing."""
    adapter: str | None = None
    weights: str = ""
    """Version of the weights; empty while an engine loads them once."""
    content: tuple[ContentSpan, ...] = ()

    def root(self, block_size: int) -> bytes:
        """The parent digest of the first block."""
        fields = [CHAIN_VERSION, block_size, self.salt, self.adapter, self.weights]
        return sha256(json.dumps(fields).encode("ascii")).digest()

    def extra(self, start: int, end: int) -> bytes:
        """Bytes hashed with the tokens of positions [start, end): the spans that reach into them."""
        spans = (span for span in self.content if span.start < end and start < span.end)
        return b"".join(struct.pack("<qq", s.start - start, s.end - start) + s.digest for s in spans)


NO_KEYS = PrefixKeys()


class PrefixChain:
    """Digests and packed token ids of one sequence's full blocks, computed once as its tokens become known.

    The chain belongs to the sequence, not to the blocks it holds: it survives preemption.
    """

    __slots__ = ("_digests", "_keys", "_pack", "_root", "_tokens", "block_size")

    def __init__(self, keys: PrefixKeys, block_size: int) -> None:
        self.block_size = block_size
        self._keys = keys
        self._root = keys.root(block_size)
        self._pack = struct.Struct(f"<{block_size}I").pack
        self._digests: list[bytes] = []
        self._tokens: list[bytes] = []

    def __len__(self) -> int:
        """Number of blocks hashed."""
        return len(self._digests)

    def extend(self, token_ids: Sequence[int]) -> None:
        """Hash the full blocks of `token_ids` that are new; the sequence may only have grown since last time."""
        size = self.block_size
        parent = self._digests[-1] if self._digests else self._root
        for start in range(len(self) * size, len(token_ids) - size + 1, size):
            tokens = self._pack(*token_ids[start : start + size])
            parent = sha256(parent + tokens + self._keys.extra(start, start + size)).digest()
            self._digests.append(parent)
            self._tokens.append(tokens)

    def block(self, index: int, span: int = 1) -> tuple[bytes, bytes]:
        """(key, packed token ids) of the `index`-th block of a group whose blocks span `span` of the chain's."""
        if span == 1:
            return self._digests[index], self._tokens[index]
        first = index * span
        return self._digests[first + span - 1], b"".join(self._tokens[first : first + span])

    def copy(self, num_tokens: int) -> PrefixChain:
        """The chain of the sequence's first `num_tokens` tokens, free to grow differently."""
        twin = PrefixChain(self._keys, self.block_size)
        twin._digests = self._digests[: num_tokens // self.block_size]
        twin._tokens = self._tokens[: num_tokens // self.block_size]
        return twin
