"""RequestState: where one request stands. Progress is two integers, so prefill and decode are one notion."""

from __future__ import annotations

from enum import Enum
from typing import NamedTuple

from headrace.cache import BlockOwner, IntegrityError, PrefixChain
from headrace.core.request import EngineRequest

Rank = tuple[int, int]
"""(priority, arrival number): the smaller one runs first and is preempted last. Unique."""


class Phase(Enum):
    WAITING = "waiting"
    """New, or preempted: holds no row and no block."""
    RUNNING = "running"
    FINISHED = "finished"
    """Done or aborted; the row and blocks go when the last step that names them has completed."""


class Chunk(NamedTuple):
    """A request's share of a step."""

    num_tokens: int
    num_prompt_logprobs: int
    samples: bool

    @property
    def num_logits_rows(self) -> int:
        return self.num_prompt_logprobs + self.samples


class RequestState:
    """A request and its progress: `num_computed` of `num_known` tokens are in the cache, or will be when the
    steps in flight are done. A sampled token counts as known from the moment its step is scheduled.
    """

    __slots__ = (
        "_was_told_cached_tokens",
        "chain",
        "last_step",
        "num_cached_tokens",
        "num_computed",
        "num_in_flight",
        "num_prompt",
        "num_reportable",
        "num_reported",
        "num_to_cache",
        "owner",
        "phase",
        "rank",
        "request",
        "row",
        "stop_token_ids",
        "token_ids",
    )

    def __init__(self, request: EngineRequest, rank: Rank, chain: PrefixChain, max_model_len: int) -> None:
        self.request = request
        self.rank = rank
        self.chain = chain
        self.phase = Phase.WAITING
        self.token_ids = list(request.prompt_token_ids)
        self.num_prompt = len(self.token_ids)
        self.num_computed = 0
        self.num_in_flight = 0
        """Tokens that scheduled steps will sample and that have not come back."""
        longest = min(self.num_prompt + request.max_tokens, max_model_len)
        self.num_to_cache = longest - 1 if request.max_tokens > 0 else longest
        """Tokens computed in the longest run: the last one sampled is only returned."""
        self.num_reportable = self.num_prompt - 1 if request.prompt_logprobs is not None else 0
        self.num_reported = 0
        """Prompt logprobs scheduled so far, of `num_reportable`."""
        self.stop_token_ids = frozenset(request.stop_token_ids)
        self.num_cached_tokens: int | None = None
        """Prompt tokens found in the prefix cache at the first admission; None before it."""
        self._was_told_cached_tokens = False
        self.row = -1
        self.owner: BlockOwner | None = None
        self.last_step = -1
        """The last scheduled step that names the row and the blocks."""

    @property
    def num_known(self) -> int:
        return len(self.token_ids) + self.num_in_flight

    @property
    def num_to_compute(self) -> int:
        """Known tokens whose KV is missing; 0 when all that is left is to wait for the last sampled token."""
        return min(len(self.token_ids) + self.num_in_flight, self.num_to_cache) - self.num_computed

    @property
    def num_generated(self) -> int:
        return len(self.token_ids) - self.num_prompt

    @property
    def hit_limit(self) -> int:
        """How many leading tokens may come from the prefix cache.

        The last known token is always computed: its logits are wanted. Prompt logprobs need every position's.
        """
        return len(self.token_ids) - 1 if self.num_reported == self.num_reportable else self.num_reported

    def next_chunk(self, max_tokens: int, max_logits_rows: int) -> Chunk:
        """The largest share of a step within these limits; may be of 0 tokens."""
        num_tokens = min(self.num_to_compute, max_tokens)
        num_prompt_logprobs = 0
        if self.num_reported < self.num_reportable:
            if self.num_computed < self.num_reported:  # resumed: a chunk repeats reported positions or adds new ones
                num_tokens = min(num_tokens, self.num_reported - self.num_computed)
            else:
                num_tokens = min(num_tokens, max_logits_rows)
                num_prompt_logprobs = min(num_tokens, self.num_reportable - self.num_computed)
        samples = self.num_computed + num_tokens == self.num_known and self.request.max_tokens > 0
        if samples and num_prompt_logprobs == max_logits_rows:
            return Chunk(num_tokens - 1, num_prompt_logprobs, False)  # the last token waits for a logits row
        return Chunk(num_tokens, num_prompt_logprobs, samples)

    def start(self, row: int, owner: BlockOwner) -> None:
        """Take a row and blocks; what they hold of the sequence need not be computed."""
        self.phase = Phase.RUNNING
        self.row, self.owner = row, owner
        self.num_computed = owner.num_cached_tokens

    def stop(self) -> None:
        """Let go of row and blocks: nothing of the sequence is computed any more."""
        self.row, self.owner = -1, None
        self.num_computed = 0

    @property
    def held_blocks(self) -> BlockOwner:
        """The blocks of a running request."""
        if self.owner is None:
            raise IntegrityError(f"request {self.request.request_id!r} holds no blocks")
        return self.owner

    def take_num_cached_tokens(self) -> int:
        """`num_cached_tokens` the first time, 0 afterwards: deltas are added up."""
        if self._was_told_cached_tokens or self.num_cached_tokens is None:
            return 0
        self._was_told_cached_tokens = True
        return self.num_cached_tokens

    def advance(self, chunk: Chunk, step_id: int) -> None:
        """Count `chunk` as computed by `step_id`."""
        self.num_computed += chunk.num_tokens
        self.num_reported += chunk.num_prompt_logprobs
        self.num_in_flight += chunk.samples
        self.last_step = step_id
