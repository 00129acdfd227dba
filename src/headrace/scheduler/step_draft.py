"""StepDraft: a step while it is being put together, and what is left of its budget."""

from __future__ import annotations

from headrace.core.schedule import RowAdmission, Schedule, ScheduledEntry
from headrace.scheduler.request_state import Chunk, RequestState


class StepDraft:
    """Collects one step's entries within its budget of tokens and logits rows."""

    __slots__ = ("admissions", "entries", "logits_rows_left", "preempted", "states", "step_id", "tokens_left")

    def __init__(self, step_id: int, max_tokens: int, max_logits_rows: int) -> None:
        self.step_id = step_id
        self.tokens_left = max_tokens
        self.logits_rows_left = max_logits_rows
        self.entries: list[ScheduledEntry] = []
        self.states: list[RequestState] = []
        """Of `entries`, one each."""
        self.admissions: list[RowAdmission] = []
        self.preempted: list[str] = []

    @property
    def has_budget(self) -> bool:
        """Whether any request with something to compute would get at least one token."""
        return self.tokens_left > 0 and self.logits_rows_left > 0

    def add(self, state: RequestState, chunk: Chunk) -> None:
        """Give `chunk` to a running request and count it as computed by this step."""
        growth = state.held_blocks.take_growth()
        self.entries.append(
            ScheduledEntry(
                request_id=state.request.request_id,
                row=state.row,
                first_position=state.num_computed,
                num_tokens=chunk.num_tokens,
                table_start=growth.start,
                new_block_ids=growth.block_ids,
                samples=chunk.samples,
                num_prompt_logprobs=chunk.num_prompt_logprobs,
            )
        )
        self.states.append(state)
        self.tokens_left -= chunk.num_tokens
        self.logits_rows_left -= chunk.num_logits_rows
        state.advance(chunk, self.step_id)

    def finish(self) -> Schedule:
        return Schedule(self.step_id, self.entries, admissions=self.admissions, preempted=self.preempted)
