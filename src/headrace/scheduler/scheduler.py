"""Scheduler: the engine's step in two halves, `schedule()` before the model runs and `update()` after.

The plain loop is `result = run(schedule()); update(schedule, result)`. Nothing here needs that order, though:
step N + 1 may be scheduled before step N is updated. A sampled token counts as known once its step is
scheduled, and rows and blocks come back only when the last step that names them has completed.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

from headrace.cache import BlockOwner, KVCache, PrefixKeys
from headrace.cache.integrity import IntegrityError, require
from headrace.core.errors import ContextLengthError, InvalidRequestError
from headrace.core.outputs import FinishReason, StepResult, TokenDelta, TokenLogprobs
from headrace.core.request import EngineRequest
from headrace.core.schedule import RowAdmission, Schedule, ScheduledEntry
from headrace.scheduler.limits import SchedulerLimits
from headrace.scheduler.ranked_queue import RankedQueue
from headrace.scheduler.request_state import Phase, Rank, RequestState
from headrace.scheduler.stats import SchedulerStats
from headrace.scheduler.step_draft import StepDraft


@dataclass(frozen=True, slots=True)
class _Retired:
    """A row and blocks whose request is gone while steps in flight still use them."""

    row: int
    owner: BlockOwner
    last_step: int


class Scheduler:
    """Continuous batching over fixed rows, chunked prefill under one token budget, preemption by recompute.

    Requests are served by rank: arrival, or priority and then arrival. The rules that make it deadlock-free:
    a request that could not fit alone is refused by `add`; whoever needs a block takes it from the lowest
    rank; so the first in rank can always go on.
    """

    def __init__(self, limits: SchedulerLimits, cache: KVCache) -> None:
        self.limits = limits
        self.cache = cache
        self.stats = SchedulerStats()
        self._requests: dict[str, RequestState] = {}
        self._waiting = RankedQueue()
        self._running = RankedQueue()
        self._free_rows = list(range(limits.max_num_seqs))  # a heap: the lowest free row is taken
        self._retired: list[_Retired] = []
        self._in_flight: deque[StepDraft] = deque()  # oldest first
        self._num_arrived = 0
        self._next_step = 0
        self._completed_step = -1

    @property
    def has_work(self) -> bool:
        return bool(self._requests)

    @property
    def num_running(self) -> int:
        return len(self._running)

    @property
    def num_waiting(self) -> int:
        return len(self._waiting)

    def add(self, request: EngineRequest) -> None:
        """Queue a request.

        Raises InvalidRequestError for an empty prompt, an id in use, or a request for which the KV cache has
        too few blocks even when it is alone; ContextLengthError for a prompt that fills the context window.
        """
        if request.request_id in self._requests:
            raise InvalidRequestError(f"request id {request.request_id!r} is in use", param="request_id")
        if not request.prompt_token_ids:
            raise InvalidRequestError("the prompt has no tokens", param="prompt")
        num_prompt, window = len(request.prompt_token_ids), self.limits.max_model_len
        if num_prompt + min(request.max_tokens, 1) > window:
            raise ContextLengthError(
                f"the prompt has {num_prompt} tokens; the context window of {window} leaves no room for an output",
                param="prompt",
            )
        chain = self.cache.new_chain(PrefixKeys(salt=request.cache_salt))
        state = RequestState(request, self._rank(request), chain, window)
        if state.num_to_cache > self.cache.max_tokens:
            raise InvalidRequestError(
                f"prompt and output may take {state.num_to_cache} tokens, the KV cache holds {self.cache.max_tokens}; "
                "lower max_tokens, or give the engine more KV memory",
                param="max_tokens",
            )
        self._num_arrived += 1
        self._requests[request.request_id] = state
        self._waiting.add(state)

    def _rank(self, request: EngineRequest) -> Rank:
        return (request.priority if self.limits.policy == "priority" else 0, self._num_arrived)

    def abort(self, request_id: str) -> bool:
        """Drop a request in any phase; what steps in flight still compute for it is discarded.

        False when there is no such request: it may have finished a moment ago.
        """
        state = self._requests.get(request_id)
        if state is not None:
            self._finish(state)
        return state is not None

    def schedule(self) -> Schedule:
        """The next step. Without entries there is nothing to run until a step in flight is updated."""
        step = StepDraft(self._next_step, self.limits.max_num_batched_tokens, self.limits.max_logits_rows)
        self._yield_to_waiting(step)
        self._continue_running(step)
        self._admit_waiting(step)
        if step.entries:
            self._next_step += 1
            self._in_flight.append(step)
        elif self.has_work and not self._in_flight:
            raise IntegrityError("there is work and nothing in flight, but no request can go on")
        return step.finish()

    def _yield_to_waiting(self, step: StepDraft) -> None:
        """Preempt what the first in the queue outranks, if that lets it in. Never happens under FCFS."""
        if not self._waiting or not self._running:
            return
        first = self._waiting.first
        outranked = [state for state in self._running if first.rank < state.rank]
        if not outranked or not self._fits(first, [state.held_blocks for state in outranked]):
            return
        while outranked and not self._retired and not (self._free_rows and self._fits(first)):
            self._preempt(outranked.pop(), step)

    def _fits(self, state: RequestState, releasing: Sequence[BlockOwner] = ()) -> bool:
        return self.cache.fits(state.chain, state.token_ids, state.hit_limit, releasing)

    def _continue_running(self, step: StepDraft) -> None:
        """Decodes first, since somebody reads along; then prefills, which had their blocks at admission."""
        prefills = []
        for state in list(self._running):
            if state.phase is not Phase.RUNNING:
                break  # preempted for one before it, and so is everything behind it
            num_to_compute = state.num_to_compute
            if num_to_compute > 1:
                prefills.append(state)
            elif num_to_compute == 1 and step.has_budget and self._make_room(state, step):
                self._add(state, step)
        for state in prefills:
            self._add(state, step)

    def _add(self, state: RequestState, step: StepDraft) -> None:
        """As much of the request as the step's budget has room for."""
        chunk = state.next_chunk(step.tokens_left, step.logits_rows_left)
        if chunk.num_tokens > 0:
            step.add(state, chunk)
            self.cache.commit(state.held_blocks, state.token_ids, min(state.num_computed, len(state.token_ids)))

    def _make_room(self, state: RequestState, step: StepDraft) -> bool:
        """A block for the next token, taken from the lowest rank if none is free."""
        while not self.cache.append(state.held_blocks, state.num_computed + 1):
            if self._retired:
                return False  # blocks are on their way back
            victim = self._running.last
            self._preempt(victim, step)
            if victim is state:
                return False
        return True

    def _admit_waiting(self, step: StepDraft) -> None:
        """Strictly in order: a large request at the head is not overtaken, so it cannot starve."""
        while self._waiting and self._free_rows and step.has_budget:
            state = self._waiting.first
            if state.num_in_flight:
                return  # preempted while its last token was being sampled
            owner = self.cache.allocate(state.chain, state.token_ids, state.hit_limit)
            if owner is None:
                return
            if state.num_cached_tokens is None:
                self._count_admission(state, owner.num_cached_tokens)
            self._waiting.remove(state)
            state.start(heapq.heappop(self._free_rows), owner)
            self._running.add(state)
            step.admissions.append(RowAdmission(state.row, state.request, list(state.token_ids)))
            self._add(state, step)

    def _count_admission(self, state: RequestState, num_cached_tokens: int) -> None:
        state.num_cached_tokens = num_cached_tokens
        self.stats.prompt_tokens += state.num_prompt
        if self.cache.enable_prefix_caching:
            self.stats.prefix_cache_queries += state.num_prompt
            self.stats.prefix_cache_hits += num_cached_tokens

    def _preempt(self, state: RequestState, step: StepDraft) -> None:
        """Back to the queue with all its tokens; their KV is computed again, or found in the prefix cache."""
        self._running.remove(state)
        self._retire(state)
        state.phase = Phase.WAITING
        self._waiting.add(state)
        step.preempted.append(state.request.request_id)
        self.stats.num_preemptions += 1

    def update(self, schedule: Schedule, result: StepResult) -> list[TokenDelta]:
        """Take in the results of the oldest step in flight; returns what each request gained by it.

        Raises IntegrityError when `schedule` is not that step, ValueError when `result` does not match it.
        """
        require(bool(self._in_flight) and self._in_flight[0].step_id == schedule.step_id, "steps complete in order")
        states = self._in_flight.popleft().states
        deltas = []
        for entry, state, token, logprobs, prompt_logprobs in zip(
            schedule.entries, states, result.sampled, result.logprobs, result.prompt_logprobs, strict=True
        ):
            state.num_in_flight -= entry.samples
            if state.phase is Phase.FINISHED:
                continue  # aborted, or stopped by an earlier step when this one was already scheduled
            delta = self._take_in(state, entry, token, logprobs, prompt_logprobs)
            if delta is not None:
                deltas.append(delta)
        self._completed_step = schedule.step_id
        self._release_retired()
        self.stats.num_steps += 1
        return deltas

    def _take_in(
        self,
        state: RequestState,
        entry: ScheduledEntry,
        token: int | None,
        logprobs: TokenLogprobs | None,
        prompt_logprobs: list[TokenLogprobs],
    ) -> TokenDelta | None:
        """One entry's results; None if the request's stream gets nothing by them (a chunk in mid-prompt)."""
        finish_reason: FinishReason | None = None
        stop_reason: int | None = None
        if entry.first_position + entry.num_tokens == state.num_to_cache:
            finish_reason = "length"
        if entry.samples:
            if token is None:
                raise ValueError(f"the step result has no token for request {entry.request_id!r}")
            state.token_ids.append(token)
            self.stats.generation_tokens += 1
            if token in state.stop_token_ids:
                finish_reason, stop_reason = "stop", token
        elif not prompt_logprobs and finish_reason is None:
            return None
        if finish_reason is not None:
            self._finish(state)
        return TokenDelta(
            request_id=entry.request_id,
            token_ids=[token] if token is not None else [],
            logprobs=[logprobs] if logprobs is not None and state.request.logprobs is not None else [],
            prompt_logprobs=prompt_logprobs,
            finish_reason=finish_reason,
            stop_reason=stop_reason,
            num_cached_tokens=state.take_num_cached_tokens(),
        )

    def _finish(self, state: RequestState) -> None:
        if state.phase is Phase.RUNNING:
            self._running.remove(state)
            self._retire(state)
        else:
            self._waiting.remove(state)
        state.phase = Phase.FINISHED
        del self._requests[state.request.request_id]

    def _retire(self, state: RequestState) -> None:
        """Take row and blocks from a running request; they are free when no step in flight names them."""
        self._retired.append(_Retired(state.row, state.held_blocks, state.last_step))
        state.stop()
        self._release_retired()

    def _release_retired(self) -> None:
        due = [r for r in self._retired if r.last_step <= self._completed_step]
        if due:
            self._retired = [r for r in self._retired if r.last_step > self._completed_step]
        for retired in due:
            self.cache.release(retired.owner)
            heapq.heappush(self._free_rows, retired.row)

    def check_integrity(self) -> None:
        """Recount rows, queues and blocks. Raises IntegrityError."""
        self.cache.check_integrity()
        rows = self._free_rows + [s.row for s in self._running] + [r.row for r in self._retired]
        require(sorted(rows) == list(range(self.limits.max_num_seqs)), "a row is lost or used twice")
        require(len(self._requests) == self.num_running + self.num_waiting, "a request is in no queue")
        num_owners = self.num_running + len(self._retired)
        require(self.cache.num_owners == num_owners, "blocks are held for a request that is gone")
        for state in self._running:
            require(state.phase is Phase.RUNNING, "a request is in the wrong queue")
            require(state.num_computed <= state.held_blocks.capacity, "computed tokens have no blocks")
        for state in self._waiting:
            require(state.phase is Phase.WAITING and state.owner is None, "a waiting request holds blocks")
        if not self._in_flight:
            require(not self._retired, "rows or blocks are kept for steps that have completed")
            require(all(s.num_in_flight == 0 for s in self._requests.values()), "a sampled token never came back")
