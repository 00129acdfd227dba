"""The step header: everything new about one step as a flat int32 array (docs/adr/0001-step-header.md).

`encode` is a pure function of the schedule; native/src/step_header.h reads the words and checks every one of them.
Logits rows come in entry order, within an entry the scored prompt tokens first and the sampled one last, so outputs
can be dealt back to `schedule.entries` by walking it with `num_prompt_logprobs` and `samples`.
"""

from __future__ import annotations

import struct
from array import array
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from headrace.core.request import EngineRequest
from headrace.core.schedule import Schedule

MAGIC = 0x31535248
VERSION = 1
HEADER_WORDS = 16
FLAG_REPEAT = 1
FLAG_WAIT_GATES = 2
KIND_SAMPLE = 0
KIND_SCORE = 1
_NO_ADAPTER = -1

Words = npt.NDArray[np.int32]


@dataclass(frozen=True, slots=True)
class Entry:
    """One row's share of the step; row -1 is padding."""

    row: int
    first_position: int
    query_length: int


@dataclass(frozen=True, slots=True)
class LogitsRow:
    """A token whose logits are wanted: entry index, offset in the entry's query, KIND_SAMPLE or KIND_SCORE."""

    entry: int
    offset: int
    kind: int


@dataclass(frozen=True, slots=True)
class TokenWrite:
    """Ids put into a row from a position on; the row knows nothing past them afterwards."""

    row: int
    first_position: int
    token_ids: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class RowParams:
    """How a row is sampled and what it reports. Counts of logprobs are -1 where none are wanted."""

    row: int
    temperature: float
    top_p: float
    top_k: int
    seed: int
    sample_index: int
    num_logprobs: int
    num_prompt_logprobs: int
    logit_bias: tuple[tuple[int, float], ...] = ()


@dataclass(frozen=True, slots=True)
class TableWrite:
    """Block ids put into a row's table of one layer group from an index on; the table ends after them."""

    group: int
    row: int
    start: int
    block_ids: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class StepHeader:
    """A header as records. `encode_header(decode(words))` gives the same words back."""

    step_id: int
    entries: tuple[Entry, ...] = ()
    logits_rows: tuple[LogitsRow, ...] = ()
    token_writes: tuple[TokenWrite, ...] = ()
    row_params: tuple[RowParams, ...] = ()
    table_writes: tuple[TableWrite, ...] = ()
    block_copies: tuple[tuple[int, int, int], ...] = ()
    """(layer group, source block, target block)"""
    overlay: tuple[tuple[int, int], ...] = ()
    """(index of the token in the step, row of the overlay that replaces its embedding)"""
    gate_targets: tuple[tuple[int, int], ...] = ()
    """(gate, value its counter must reach)"""
    waits_gates: bool = field(default=False, kw_only=True)


def encode(schedule: Schedule) -> Words:
    """The header of a scheduled step, int32 [num_words], read-only."""
    entries, logits_rows, table_writes = array("i"), array("i"), array("i")
    num_tokens = num_logits_rows = num_table_writes = 0
    for index, e in enumerate(schedule.entries):
        entries.extend((e.row, e.first_position, e.num_tokens, 0, _NO_ADAPTER, 0))
        num_tokens += e.num_tokens
        for offset in range(e.num_prompt_logprobs):
            logits_rows.extend((index, offset, KIND_SCORE))
        if e.samples:
            logits_rows.extend((index, e.num_tokens - 1, KIND_SAMPLE))
        num_logits_rows += e.num_prompt_logprobs + e.samples
        for group, block_ids in enumerate(e.new_block_ids):
            if block_ids:
                table_writes.extend((group, e.row, e.table_start[group], len(block_ids)))
                table_writes.extend(block_ids)
                num_table_writes += 1
    token_writes, row_params = array("i"), array("i")
    for a in schedule.admissions:
        token_writes.extend((a.row, 0, len(a.token_ids)))
        token_writes.extend(a.token_ids)
        _append_params(row_params, _params_of(a.row, a.request))
    copies = array("i")
    for c in schedule.block_copies:
        copies.extend((c.group, c.source, c.target))
    counts = (
        len(schedule.entries),
        num_logits_rows,
        len(schedule.admissions),
        len(schedule.admissions),
        num_table_writes,
        len(schedule.block_copies),
        0,
        0,
    )
    body = entries + logits_rows + token_writes + row_params + table_writes + copies
    return _assemble(schedule.step_id, 0, num_tokens, counts, body)


def encode_header(header: StepHeader) -> Words:
    """The words of a header given as records: for tests, warm-up and whatever has no schedule."""
    body = array("i")
    for e in header.entries:
        body.extend((e.row, e.first_position, e.query_length, 0, _NO_ADAPTER, 0))
    for r in header.logits_rows:
        body.extend((r.entry, r.offset, r.kind))
    for w in header.token_writes:
        body.extend((w.row, w.first_position, len(w.token_ids), *w.token_ids))
    for p in header.row_params:
        _append_params(body, p)
    for t in header.table_writes:
        body.extend((t.group, t.row, t.start, len(t.block_ids), *t.block_ids))
    for copy in header.block_copies:
        body.extend(copy)
    for pair in header.overlay:
        body.extend(pair)
    for gate, target in header.gate_targets:
        body.extend((gate, *_split(target)))
    counts = tuple(
        len(section)
        for section in (
            header.entries,
            header.logits_rows,
            header.token_writes,
            header.row_params,
            header.table_writes,
            header.block_copies,
            header.overlay,
            header.gate_targets,
        )
    )
    num_tokens = sum(e.query_length for e in header.entries)
    return _assemble(header.step_id, FLAG_WAIT_GATES if header.waits_gates else 0, num_tokens, counts, body)


def decode(words: Words) -> StepHeader:
    """The records of a header that `encode` or `encode_header` made.

    Raises ValueError for another magic or version and for words that do not add up; the native reader alone checks
    the numbers against rows, blocks and vocabulary.
    """
    fixed = [int(w) for w in words[:HEADER_WORDS]]
    if len(fixed) < HEADER_WORDS or fixed[0] != MAGIC or fixed[1] != VERSION or fixed[2] != len(words):
        raise ValueError("not a step header of this version")
    read = _Reader([int(w) for w in words[HEADER_WORDS:]])
    num_entries, num_logits, num_tokens, num_params, num_tables, num_copies, num_overlay, num_gates = fixed[7:15]
    header = StepHeader(
        step_id=_join(fixed[4], fixed[5]),
        entries=tuple(read.entry() for _ in range(num_entries)),
        logits_rows=tuple(LogitsRow(*read.take(3)) for _ in range(num_logits)),
        token_writes=tuple(read.token_write() for _ in range(num_tokens)),
        row_params=tuple(read.params() for _ in range(num_params)),
        table_writes=tuple(read.table_write() for _ in range(num_tables)),
        block_copies=tuple(read.triple() for _ in range(num_copies)),
        overlay=tuple(read.pair() for _ in range(num_overlay)),
        gate_targets=tuple(read.gate() for _ in range(num_gates)),
        waits_gates=bool(fixed[3] & FLAG_WAIT_GATES),
    )
    if read.num_left:
        raise ValueError(f"{read.num_left} words are left over")
    return header


class _Reader:
    def __init__(self, words: list[int]) -> None:
        self._words = words
        self._next = 0

    @property
    def num_left(self) -> int:
        return len(self._words) - self._next

    def take(self, count: int) -> list[int]:
        if not 0 <= count <= self.num_left:
            raise ValueError("the header ends inside a section")
        taken = self._words[self._next : self._next + count]
        self._next += count
        return taken

    def entry(self) -> Entry:
        row, first_position, query_length, _, _, _ = self.take(6)
        return Entry(row, first_position, query_length)

    def token_write(self) -> TokenWrite:
        row, first_position, count = self.take(3)
        return TokenWrite(row, first_position, tuple(self.take(count)))

    def params(self) -> RowParams:
        row, temperature, top_p, top_k, low, high, sample_index, logprobs, prompt_logprobs, count = self.take(10)
        pairs = self.take(2 * count)
        bias = tuple((pairs[i], _float(pairs[i + 1])) for i in range(0, len(pairs), 2))
        seed = _join(low, high)
        return RowParams(
            row, _float(temperature), _float(top_p), top_k, seed, sample_index, logprobs, prompt_logprobs, bias
        )

    def table_write(self) -> TableWrite:
        group, row, start, count = self.take(4)
        return TableWrite(group, row, start, tuple(self.take(count)))

    def triple(self) -> tuple[int, int, int]:
        a, b, c = self.take(3)
        return a, b, c

    def pair(self) -> tuple[int, int]:
        a, b = self.take(2)
        return a, b

    def gate(self) -> tuple[int, int]:
        gate, low, high = self.take(3)
        return gate, _join(low, high)


def _params_of(row: int, request: EngineRequest) -> RowParams:
    return RowParams(
        row=row,
        temperature=request.temperature,
        top_p=request.top_p,
        top_k=request.top_k,
        seed=request.seed,
        sample_index=request.sample_index,
        num_logprobs=-1 if request.logprobs is None else request.logprobs,
        num_prompt_logprobs=-1 if request.prompt_logprobs is None else request.prompt_logprobs,
        logit_bias=tuple(request.logit_bias.items()),
    )


def _append_params(words: array[int], p: RowParams) -> None:
    # A top_p that is above 0 only in double precision would be 0 to the reader, which refuses that.
    top_p = _word(p.top_p) or 1
    words.extend((p.row, _word(p.temperature), top_p, p.top_k, *_split(p.seed), p.sample_index))
    words.extend((p.num_logprobs, p.num_prompt_logprobs, len(p.logit_bias)))
    for token, bias in sorted(p.logit_bias):
        words.extend((token, _word(bias)))


def _assemble(step_id: int, flags: int, num_tokens: int, counts: tuple[int, ...], body: array[int]) -> Words:
    words = array("i", (MAGIC, VERSION, HEADER_WORDS + len(body), flags, *_split(step_id), num_tokens, *counts, 0))
    words.extend(body)
    # A view of the array's bytes; the array cannot be reached from anywhere else.
    header = np.frombuffer(words, dtype=np.int32)
    header.flags.writeable = False
    return header


def _split(value: int) -> tuple[int, int]:
    """A 64-bit number as two signed words, low first."""
    low, high = struct.unpack("<ii", struct.pack("<Q", value & 0xFFFFFFFFFFFFFFFF))
    return low, high


def _join(low: int, high: int) -> int:
    value: int = struct.unpack("<Q", struct.pack("<ii", low, high))[0]
    return value


def _word(value: float) -> int:
    """The bits of `value` as a 32-bit float."""
    word: int = struct.unpack("<i", struct.pack("<f", value))[0]
    return word


def _float(word: int) -> float:
    value: float = struct.unpack("<f", struct.pack("<i", word))[0]
    return value
