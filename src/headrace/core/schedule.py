"""Schedule: who runs in one step, and what is new about their rows. No tensors."""

from __future__ import annotations

import msgspec

from headrace.core.request import EngineRequest


class RowAdmission(msgspec.Struct, frozen=True):
    """A request takes `row` in this step: first admission or resumption after preemption."""

    row: int
    request: EngineRequest
    token_ids: list[int]
    """Prompt and, after a preemption, what had been generated before it."""


class ScheduledEntry(msgspec.Struct, frozen=True, gc=False):
    """One row's share of a step."""

    request_id: str
    row: int
    first_position: int
    """Position of the first token computed in this step; everything before it is in the cache."""
    num_tokens: int
    table_start: tuple[int, ...]
    """Per layer group: index in the row's block table of the first id in `new_block_ids`."""
    new_block_ids: tuple[list[int], ...]
    """Per layer group: block ids appended to the row's table before the step."""
    samples: bool
    """The last token's logits are sampled: the step completes what is known of the sequence."""
    num_prompt_logprobs: int = 0
    """The first so many tokens of this chunk report the logprob of the prompt token that follows each."""


class BlockCopy(msgspec.Struct, frozen=True):
    """Copy a whole block of one layer group before the step (copy on write)."""

    group: int
    source: int
    target: int


class Schedule(msgspec.Struct, frozen=True):
    """One step. Entries are in batch order; `entries` empty means nothing to run."""

    step_id: int
    entries: list[ScheduledEntry]
    admissions: list[RowAdmission] = []
    block_copies: list[BlockCopy] = []
    preempted: list[str] = []

    @property
    def num_tokens(self) -> int:
        return sum(e.num_tokens for e in self.entries)

    @property
    def num_logits_rows(self) -> int:
        return sum(e.num_prompt_logprobs + e.samples for e in self.entries)
