"""A model without weights that reads its history through the block tables, as the real one does.

The KV of a position is a number that depends on every token before it; the next token depends on the KV of
every position, read through the row's block tables. A wrong table, a block reused too early, a stale prefix
or a token computed twice in the wrong place all change the output.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable

from headrace.cache import NULL_BLOCK, KVCache, LayerGroupSpec
from headrace.core.outputs import StepResult, TokenDelta, TokenLogprobs
from headrace.core.request import EngineRequest
from headrace.core.schedule import Schedule, ScheduledEntry
from headrace.scheduler import Scheduler, SchedulerLimits

VOCAB_SIZE = 11


def kv_of(previous: int, position: int, token: int) -> int:
    return hash((previous, position, token))


def history_of(token_ids: Iterable[int]) -> tuple[int, ...]:
    """The KV of every position of a sequence."""
    history: list[int] = []
    for position, token in enumerate(token_ids):
        history.append(kv_of(history[-1] if history else 0, position, token))
    return tuple(history)


def next_token(request: EngineRequest, history: tuple[int, ...]) -> int:
    return hash((history, request.seed, request.sample_index)) % VOCAB_SIZE


def logprob_of(token: int, history: tuple[int, ...]) -> TokenLogprobs:
    return TokenLogprobs(token, -(hash((history, token)) % 997) / 100, 1)


def group(block_size: int = 16) -> LayerGroupSpec:
    return LayerGroupSpec(num_layers=1, num_kv_heads=1, head_dim=1, block_size=block_size)


def make_cache(*num_blocks: int, block_sizes: Iterable[int] = (16,), enable_prefix_caching: bool = True) -> KVCache:
    """`num_blocks` are usable ones; the null block comes on top."""
    specs = [group(size) for size in block_sizes]
    return KVCache(specs, [count + 1 for count in num_blocks], enable_prefix_caching=enable_prefix_caching)


class Row:
    def __init__(self, request: EngineRequest, tokens: list[int], num_groups: int) -> None:
        self.request = request
        self.tokens = list(tokens)
        self.tables: list[list[int]] = [[] for _ in range(num_groups)]


class MockModel:
    """Rows and KV memory; executes schedules in the order given and checks what a runner relies on."""

    def __init__(self, scheduler: Scheduler) -> None:
        self.limits: SchedulerLimits = scheduler.limits
        self.specs = scheduler.cache.specs
        self.rows: dict[int, Row] = {}
        self.memory = [
            [[0] * s.block_size for _ in range(p.num_blocks)]
            for s, p in zip(self.specs, scheduler.cache.pools, strict=True)
        ]
        self.num_tokens_computed = 0
        self.chunk_sizes: set[int] = set()

    def execute(self, schedule: Schedule) -> StepResult:
        assert 0 < schedule.num_tokens <= self.limits.max_num_batched_tokens
        assert schedule.num_logits_rows <= self.limits.max_logits_rows
        assert len({entry.row for entry in schedule.entries}) == len(schedule.entries) <= self.limits.max_num_seqs
        for admission in schedule.admissions:
            assert 0 <= admission.row < self.limits.max_num_seqs
            self.rows[admission.row] = Row(admission.request, admission.token_ids, len(self.specs))
        for entry in schedule.entries:
            self._write_tables(entry)
        for entry in schedule.entries:
            self._write_kv(entry)
        return StepResult(
            sampled=[self._sample(entry) for entry in schedule.entries],
            logprobs=[None] * len(schedule.entries),
            prompt_logprobs=[self._prompt_logprobs(entry) for entry in schedule.entries],
        )

    def _write_tables(self, entry: ScheduledEntry) -> None:
        for table, start, ids in zip(self.rows[entry.row].tables, entry.table_start, entry.new_block_ids, strict=True):
            assert start == len(table)
            assert NULL_BLOCK not in ids
            table.extend(ids)

    def _write_kv(self, entry: ScheduledEntry) -> None:
        row = self.rows[entry.row]
        assert row.request.request_id == entry.request_id
        assert entry.num_tokens >= 1
        for position in range(entry.first_position, entry.first_position + entry.num_tokens):
            for number in range(len(self.specs)):
                previous = self._read(row, number, position - 1) if position else 0
                block, slot = self._place(row, number, position)
                self.memory[number][block][slot] = kv_of(previous, position, row.tokens[position])
        self.num_tokens_computed += entry.num_tokens
        self.chunk_sizes.add(entry.num_tokens)

    def _place(self, row: Row, number: int, position: int) -> tuple[int, int]:
        index, slot = divmod(position, self.specs[number].block_size)
        return row.tables[number][index], slot

    def _read(self, row: Row, number: int, position: int) -> int:
        block, slot = self._place(row, number, position)
        return self.memory[number][block][slot]

    def _history(self, row: Row, end: int) -> tuple[int, ...]:
        """What attention sees at position end - 1; all groups must agree."""
        histories = {tuple(self._read(row, g, p) for p in range(end)) for g in range(len(self.specs))}
        assert len(histories) == 1
        return histories.pop()

    def _sample(self, entry: ScheduledEntry) -> int | None:
        if not entry.samples:
            return None
        row = self.rows[entry.row]
        end = entry.first_position + entry.num_tokens
        assert end == len(row.tokens)
        token = next_token(row.request, self._history(row, end))
        row.tokens.append(token)  # the native side writes it at position + 1
        assert len(row.tokens) <= self.limits.max_model_len
        return token

    def _prompt_logprobs(self, entry: ScheduledEntry) -> list[TokenLogprobs]:
        row = self.rows[entry.row]
        ends = range(entry.first_position + 1, entry.first_position + 1 + entry.num_prompt_logprobs)
        return [logprob_of(row.tokens[end], self._history(row, end)) for end in ends]


class Output:
    """A request's deltas, added up."""

    def __init__(self) -> None:
        self.token_ids: list[int] = []
        self.prompt_logprobs: list[TokenLogprobs] = []
        self.finish_reason: str | None = None
        self.stop_reason: int | None = None
        self.num_cached_tokens = 0

    def add(self, delta: TokenDelta) -> None:
        assert self.finish_reason is None
        self.token_ids += delta.token_ids
        self.prompt_logprobs += delta.prompt_logprobs
        self.finish_reason = delta.finish_reason
        self.stop_reason = delta.stop_reason
        self.num_cached_tokens += delta.num_cached_tokens


def expected(request: EngineRequest, max_model_len: int) -> Output:
    """The output of `request` by itself: no cache, no batch, no scheduler."""
    output = Output()
    tokens = list(request.prompt_token_ids)
    if request.prompt_logprobs is not None:
        history = history_of(tokens)
        output.prompt_logprobs = [logprob_of(tokens[end], history[:end]) for end in range(1, len(tokens))]
    output.finish_reason = "length" if request.max_tokens == 0 else None
    while output.finish_reason is None:
        token = next_token(request, history_of(tokens))
        tokens.append(token)
        output.token_ids.append(token)
        if token in request.stop_token_ids:
            output.finish_reason, output.stop_reason = "stop", token
        elif len(output.token_ids) == request.max_tokens or len(tokens) == max_model_len:
            output.finish_reason = "length"
    return output


class Engine:
    """Scheduler and mock model in a loop that may schedule `lag` steps ahead of the results."""

    def __init__(self, scheduler: Scheduler, lag: int = 0) -> None:
        self.scheduler = scheduler
        self.model = MockModel(scheduler)
        self.lag = lag
        self.outputs: dict[str, Output] = {}
        self.schedules: list[Schedule] = []
        self._in_flight: deque[tuple[Schedule, StepResult]] = deque()

    def add(self, request: EngineRequest) -> None:
        self.scheduler.add(request)
        self.outputs[request.request_id] = Output()

    def step(self) -> Schedule:
        """Schedule and run one step; take in results that are more than `lag` steps old, or older if it stalls."""
        schedule = self.scheduler.schedule()
        if schedule.entries:
            self.schedules.append(schedule)
            self._in_flight.append((schedule, self.model.execute(schedule)))
        while len(self._in_flight) > (self.lag if schedule.entries else 0):
            self._land()
        return schedule

    def _land(self) -> None:
        for delta in self.scheduler.update(*self._in_flight.popleft()):
            self.outputs[delta.request_id].add(delta)

    def run(self) -> None:
        """Until nothing is left to do or in flight; fails if that takes unreasonably long."""
        for _ in range(20_000):
            if not self.scheduler.has_work and not self._in_flight:
                return
            self.step()
            self.scheduler.check_integrity()
        raise AssertionError("the scheduler makes no progress")


def make_engine(
    *,
    num_blocks: int = 64,
    max_num_seqs: int = 8,
    max_num_batched_tokens: int = 64,
    max_model_len: int = 256,
    max_logits_rows: int = 8,
    policy: str = "fcfs",
    enable_prefix_caching: bool = True,
    lag: int = 0,
) -> Engine:
    limits = SchedulerLimits(
        max_num_seqs=max_num_seqs,
        max_num_batched_tokens=max_num_batched_tokens,
        max_model_len=max_model_len,
        max_logits_rows=max_logits_rows,
        policy=policy,
    )
    return Engine(Scheduler(limits, make_cache(num_blocks, enable_prefix_caching=enable_prefix_caching)), lag)


def request(name: str, prompt: Iterable[int], max_tokens: int = 4, **fields: object) -> EngineRequest:
    return EngineRequest(request_id=name, prompt_token_ids=list(prompt), max_tokens=max_tokens, **fields)  # type: ignore[arg-type]
