"""Looking inside: whole-model logits, chunk by chunk, on any face. For tests and for people; not for serving."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from headrace.config.engine import EngineConfig
from headrace.config.machine import MemoryBound, MemoryBudget
from headrace.runner import step_header
from headrace.runner.memory_plan import NULL_BLOCKS, layer_group_specs, plan_memory
from headrace.runner.model_runner import ModelRunner
from headrace.runner.planning import plan_model
from headrace.weights.checkpoint import open_checkpoint

F32 = NDArray[np.float32]
_BUDGET = MemoryBudget(1 << 40, "unlimited", MemoryBound(1 << 40, 1 << 40, "unlimited"))
_LOGITS_ROWS_PER_STEP = 256


class DebugRunner:
    """A runner without scheduler or cache: every row has its own contiguous blocks.

    options: fields of EngineConfig. fused, reference_ops: see `plan_model`.
    """

    def __init__(
        self,
        model: str | Path,
        *,
        num_rows: int = 1,
        num_threads: int = 1,
        fused: bool = True,
        reference_ops: frozenset[str] = frozenset(),
        **options: Any,
    ) -> None:
        rows = max(num_rows, _LOGITS_ROWS_PER_STEP)
        defaults = {"max_num_batched_tokens": 512, "max_num_seqs": num_rows, "max_logits_rows": rows}
        self.config = EngineConfig(model=str(model), **{**defaults, **options})
        planned = plan_model(self.config, open_checkpoint(Path(model)), fused=fused, reference_ops=reference_ops)
        specs = layer_group_specs(planned.plan, self.config.block_size)
        self.plan, self.vocab_size = planned.plan, planned.model_config.vocab_size
        memory = plan_memory(planned.plan, self.config, specs, _BUDGET, num_threads=num_threads)
        self.runner = ModelRunner(self.config, planned, memory, num_threads=num_threads)
        self._blocks_per_row = [s.blocks_needed(planned.max_model_len) for s in specs]
        self._known: dict[int, int] = {}
        self._steps = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.runner.close()

    def step(self, queries: Sequence[tuple[int, Sequence[int]]], *, wanted: Sequence[tuple[int, int]] = ()) -> F32:
        """Append token ids to rows and run them in one step.

        queries: (row, ids) in batch order. wanted: (index of the query, offset in it) whose logits to return.
        Returns f32 [len(wanted), vocab]; bit patterns are those the sampler sees.
        """
        entries, writes, tables, params = [], [], [], []
        for row, ids in queries:
            known = self._known.get(row, 0)
            entries.append(step_header.Entry(row, known, len(ids)))
            writes.append(step_header.TokenWrite(row, known, tuple(ids)))
            if known == 0:
                params.append(step_header.RowParams(row, 0.0, 1.0, 0, 0, 0, -1, -1))
                for group, count in enumerate(self._blocks_per_row):
                    blocks = range(NULL_BLOCKS + row * count, NULL_BLOCKS + (row + 1) * count)
                    tables.append(step_header.TableWrite(group, row, 0, tuple(blocks)))
            self._known[row] = known + len(ids)
        kinds = {True: step_header.KIND_SAMPLE, False: step_header.KIND_SCORE}
        header = step_header.StepHeader(
            self._steps,
            tuple(entries),
            tuple(step_header.LogitsRow(q, o, kinds[o == len(queries[q][1]) - 1]) for q, o in wanted),
            tuple(writes),
            tuple(params),
            tuple(tables),
        )
        self._steps += 1
        self.runner.executor.step(step_header.encode_header(header))
        return self.runner.logits(len(wanted)).copy()

    def forget(self, row: int) -> None:
        """Let the row start a new sequence."""
        self._known.pop(row, None)


def logits(model: str | Path, token_ids: Sequence[int], chunks: Sequence[int] | None = None, **options: Any) -> F32:
    """Logits after every token: f32 [num_tokens, vocab].

    chunks: how many tokens each step computes (the last one repeats); by default as many as fit.
    """
    with DebugRunner(model, **options) as runner:
        return run_chunks(runner, 0, token_ids, chunks)


def run_chunks(runner: DebugRunner, row: int, token_ids: Sequence[int], chunks: Sequence[int] | None = None) -> F32:
    """All logits of one sequence on `row`, computed in chunks."""
    sizes = list(chunks or [_LOGITS_ROWS_PER_STEP])
    limit = min(runner.config.num_logits_rows, runner.config.max_num_batched_tokens)
    out, at, i = [], 0, 0
    while at < len(token_ids):
        size = min(sizes[min(i, len(sizes) - 1)], limit, len(token_ids) - at)
        ids = token_ids[at : at + size]
        out.append(runner.step([(row, ids)], wanted=[(0, o) for o in range(size)]))
        at, i = at + size, i + 1
    return np.concatenate(out)
