"""ReferenceExecutor: rows, header and every call in NumPy. The slow truth of a whole engine (`isa="reference"`)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from headrace.cache.spec import LayerGroupSpec
from headrace.config.engine import EngineConfig
from headrace.graph.plan import Plan
from headrace.kernels.reference.attention import KvMemory
from headrace.runner import step_header
from headrace.runner.hybrid_executor import last_tokens, logits_tokens
from headrace.runner.reference_faces import F32, ReferenceFaces, StepContext
from headrace.sampling import SampleSettings, report, sample


class ReferenceExecutor:
    """Same interface and same header as the native executor, one obvious line per rule.

    memory and kv: as for ReferenceFaces. Raises ValueError for a header of another version; unlike the native
    executor it does not check every index.
    """

    def __init__(
        self,
        plan: Plan,
        memory: Mapping[str, NDArray[np.generic]],
        kv: Sequence[KvMemory],
        specs: Sequence[LayerGroupSpec],
        config: EngineConfig,
    ) -> None:
        self._plan, self._kv, self._specs = plan, kv, specs
        self._faces = ReferenceFaces(plan, memory, kv, specs)
        self._max_top = config.max_top_logprobs
        shape = (config.max_num_seqs, plan.limits["max_model_len"] + 1)
        self._tokens = np.zeros(shape, np.int32)
        self._tables = [
            np.zeros((config.max_num_seqs, s.blocks_needed(plan.limits["max_model_len"])), np.int32) for s in specs
        ]
        self._params: dict[int, step_header.RowParams] = {}
        self._outputs: dict[str, NDArray[np.generic]] = {}

    def step(self, header: NDArray[np.int32]) -> None:
        """Apply the header's writes, run the plan, sample."""
        parsed = step_header.decode(header)
        self._apply(parsed)
        context = self._context(parsed)
        for call in self._plan.calls:
            if call.op == "sample":
                logits = self._faces.rows(call.refs[0], len(parsed.logits_rows), call.dims[0], call.dims[0])
                self._sample(parsed, logits)
            elif call.op != "gate":
                self._faces.run(call, context)

    def outputs(self) -> dict[str, NDArray[np.generic]]:
        return self._outputs

    def close(self) -> None:
        self._outputs, self._kv = {}, ()
        self._faces.close()

    def _apply(self, header: step_header.StepHeader) -> None:
        for write in header.token_writes:
            at = write.first_position
            self._tokens[write.row, at : at + len(write.token_ids)] = write.token_ids
        for params in header.row_params:
            self._params[params.row] = params
        for table in header.table_writes:
            self._tables[table.group][table.row, table.start : table.start + len(table.block_ids)] = table.block_ids
        for group, source, target in header.block_copies:
            stride = self._specs[group].block_stride
            blocks = self._kv[group][: len(self._kv[group]) // stride * stride].reshape(-1, stride)
            blocks[target] = blocks[source]

    def _context(self, header: step_header.StepHeader) -> StepContext:
        rows = [e.row for e in header.entries for _ in range(e.query_length)]
        positions = [p for e in header.entries for p in range(e.first_position, e.first_position + e.query_length)]
        return StepContext(
            token_ids=self._tokens[rows, positions],
            token_rows=np.asarray(rows, np.int32),
            token_positions=np.asarray(positions, np.int32),
            logits_tokens=logits_tokens(header),
            last_tokens=last_tokens(header),
            tables=lambda group, row: self._tables[group][row],
            overlay=header.overlay,
        )

    def _sample(self, header: step_header.StepHeader, logits: F32) -> None:
        count, top = len(header.logits_rows), self._max_top
        ids, ranks = np.zeros(count, np.int32), np.zeros(count, np.int32)
        logprobs = np.zeros(count, np.float32)
        top_ids, top_logprobs = np.full((count, top), -1, np.int32), np.zeros((count, top), np.float32)
        for i, wanted in enumerate(header.logits_rows):
            entry = header.entries[wanted.entry]
            params, next_position = self._params[entry.row], entry.first_position + wanted.offset + 1
            if wanted.kind == step_header.KIND_SAMPLE:
                ids[i] = self._tokens[entry.row, next_position] = sample(logits[i], _settings(params), next_position)
                num_top = params.num_logprobs
            else:
                ids[i], num_top = self._tokens[entry.row, next_position], params.num_prompt_logprobs
            if num_top >= 0:
                found = report(logits[i], int(ids[i]), num_top)
                logprobs[i], ranks[i] = found.logprob, found.rank
                top_ids[i, :num_top], top_logprobs[i, :num_top] = found.top_ids, found.top_logprobs
        self._outputs = {
            "token_ids": ids,
            "logprobs": logprobs,
            "ranks": ranks,
            "top_ids": top_ids,
            "top_logprobs": top_logprobs,
        }


def _settings(params: step_header.RowParams) -> SampleSettings:
    return SampleSettings(
        temperature=params.temperature,
        top_p=params.top_p,
        top_k=params.top_k,
        seed=params.seed,
        sample_index=params.sample_index,
        logit_bias=dict(params.logit_bias),
    )
