"""ModelRunner: owns the model's memory and replays its plan over rows that never move."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Mapping
from typing import Any, Protocol, cast

import numpy as np
from numpy.typing import NDArray

from headrace import _native
from headrace.config.engine import EngineConfig
from headrace.core.outputs import StepResult, TokenLogprobs
from headrace.core.request import EngineRequest
from headrace.core.schedule import Schedule
from headrace.core.stats import MemoryLine
from headrace.kernels.cpu.calls import bind
from headrace.kernels.packing import pack_weights
from headrace.kernels.reference.attention import KV_NUMPY, KvMemory
from headrace.kernels.table import KV_DTYPES
from headrace.runner import step_header
from headrace.runner.hybrid_executor import HybridExecutor
from headrace.runner.memory_plan import MemoryPlan
from headrace.runner.planning import PlannedModel
from headrace.runner.reference_executor import ReferenceExecutor
from headrace.runner.reference_faces import ReferenceFaces
from headrace.runner.region import Region, resident_bytes


class Executor(Protocol):
    """What a runner needs of an executor; native and reference have it."""

    def step(self, header: NDArray[np.int32]) -> None: ...

    def outputs(self) -> dict[str, NDArray[np.generic]]: ...

    def close(self) -> None: ...


class ModelRunner:
    """Packs the weights, binds the plan and executes schedules.

    planned: an open checkpoint with its plan. memory: the budgeted sizes. num_threads: compute threads.
    progress: called with packed weight bytes while loading. `startup_s` holds the seconds of each phase.
    """

    def __init__(
        self,
        config: EngineConfig,
        planned: PlannedModel,
        memory: MemoryPlan,
        *,
        num_threads: int,
        progress: Callable[[int], None] | None = None,
    ) -> None:
        self.plan, self.memory, self._config = planned.plan, memory, config
        self.startup_s: dict[str, float] = {}
        self._regions: dict[str, Region] = {}
        self._wants_logprobs: dict[int, EngineRequest] = {}
        self.on_step: Callable[[Schedule, NDArray[np.float32]], None] | None = None
        """Called after each step with its raw logits, f32 [num_logits_rows, vocab], a view valid until the next one."""
        start = time.perf_counter()
        weights = self._reserve("weights", memory.weights_bytes, huge_pages=True)
        pack_weights(self.plan, planned.checkpoint, weights.array(), num_threads=num_threads, progress=progress)
        self.startup_s["pack"] = time.perf_counter() - start
        start = time.perf_counter()
        self._reserve("arena", memory.arena_bytes)
        tables = self._reserve("tables", memory.tables_bytes)
        self._fill_rope_table(tables, planned)
        kv = [self._reserve(f"kv {s.kind}", n) for s, n in zip(memory.specs, memory.kv_bytes, strict=True)]
        if config.prefault:
            for region in self._regions.values():
                if region.name != "weights":
                    region.prefault()
        self._executor = self._make_executor(num_threads, kv)
        self._queue: _native.StepQueue | None = None
        if config.overlap and isinstance(self._executor, _native.Executor):
            self._queue = _native.StepQueue(self._executor)
        self._done: deque[StepResult] = deque()
        self.startup_s["bind"] = time.perf_counter() - start

    @property
    def executor(self) -> Executor:
        return self._executor

    def region(self, name: str) -> Region:
        return self._regions[name]

    def execute(self, schedule: Schedule) -> StepResult:
        """Run one step. Returns the sampled ids and logprobs, aligned with the schedule's entries."""
        self._note_admissions(schedule)
        return self._run(schedule)

    def submit(self, schedule: Schedule) -> None:
        """Queue a step behind those submitted before and return at once, where the executor can.

        Executors that are not native, and runs with `on_step`, compute it here and now instead.
        """
        self._note_admissions(schedule)
        if self._queue is None or self.on_step is not None:
            self._done.append(self._run(schedule))
        else:
            self._queue.submit(step_header.encode(schedule))

    def collect(self, schedule: Schedule) -> StepResult:
        """Wait for the oldest submitted step, which must be `schedule`'s. Raises what the step raised."""
        if self._done:
            return self._done.popleft()
        if self._queue is None:
            raise RuntimeError("no step was submitted")
        return _collect(schedule, self._queue.collect(), self._wants_logprobs)

    @property
    def num_submitted(self) -> int:
        """Steps submitted and not yet collected."""
        return len(self._done) + (self._queue.num_pending if self._queue is not None else 0)

    def _note_admissions(self, schedule: Schedule) -> None:
        # A row is not given away while a step in flight names it, so noting early cannot mix up two requests.
        for admission in schedule.admissions:
            request = admission.request
            if request.logprobs is None and request.prompt_logprobs is None:
                self._wants_logprobs.pop(admission.row, None)
            else:
                self._wants_logprobs[admission.row] = request

    def _run(self, schedule: Schedule) -> StepResult:
        self._executor.step(step_header.encode(schedule))
        if self.on_step is not None:
            self.on_step(schedule, self.logits(schedule.num_logits_rows))
        return _collect(schedule, self._executor.outputs(), self._wants_logprobs)

    def logits(self, num_rows: int) -> NDArray[np.float32]:
        """Raw logits of the last step's first `num_rows` logits rows: f32 [num_rows, vocab], a view."""
        sample = next(c for c in self.plan.calls if c.op == "sample")
        start = sample.refs[0].offset_bytes // 4 if sample.refs[0] else 0
        vocab = sample.dims[0]
        arena = self._regions["arena"].array(np.float32)
        return cast("NDArray[np.float32]", arena[start : start + num_rows * vocab].reshape(num_rows, vocab))

    def memory_lines(self) -> list[MemoryLine]:
        """The memory table with what is resident now."""
        return self.memory.lines(resident_bytes(list(self._regions.values())))

    def close(self) -> None:
        """Stop the threads and unmap everything. Idempotent."""
        if self._queue is not None:
            self._queue.close()
        self._executor.close()
        for region in self._regions.values():
            region.close()

    def _reserve(self, name: str, size_bytes: int, *, huge_pages: bool = False) -> Region:
        region = self._regions[name] = Region(name, size_bytes, huge_pages=huge_pages)
        return region

    def _fill_rope_table(self, tables: Region, planned: PlannedModel) -> None:
        model = planned.model_config
        factor = model.rope_scaling.attention_factor if model.rope_scaling else 1.0
        table = _native.rope_table(np.asarray(model.inv_freq(), np.float64), planned.max_model_len, factor)
        tables.array(np.float32)[: table.size] = table.reshape(-1)

    def _make_executor(self, num_threads: int, kv: list[Region]) -> Executor:
        plan, config, specs = self.plan, self._config, self.memory.specs
        if plan.isa == "reference":
            return ReferenceExecutor(plan, self._views(), self._kv_views(kv), specs, config)
        tables = self._regions["tables"].address
        bases = {
            "arena": self._regions["arena"].address,
            "weights": self._regions["weights"].address,
            "constants": tables,
            "taps": tables + plan.constants_bytes,
            "overlay": 0,
        }
        native = _native.Executor(plan.isa, num_threads)
        native.set_rows(
            config.max_num_seqs,
            plan.limits["max_model_len"],
            config.max_num_batched_tokens,
            config.num_logits_rows,
            config.max_top_logprobs,
            len(specs),
            [s.blocks_needed(plan.limits["max_model_len"]) for s in specs],
        )
        for i, (spec, region, n) in enumerate(zip(specs, kv, self.memory.num_blocks, strict=True)):
            strides = (spec.block_stride, spec.layer_stride, spec.head_stride, spec.v_offset)
            native.set_kv_group(i, region.address, n, spec.block_size, *strides, KV_DTYPES[plan.kv_dtype])
        native.load_plan(bind(plan, bases).tobytes(), [first for first, _ in plan.segments.values()])
        if any(call.face == "reference" for call in plan.calls):
            faces = ReferenceFaces(plan, self._views(), self._kv_views(kv), specs)
            return HybridExecutor(plan, native, faces)
        return native

    def _kv_views(self, kv: list[Region]) -> list[KvMemory]:
        return [region.array(KV_NUMPY[self.plan.kv_dtype]) for region in kv]

    def _views(self) -> dict[str, NDArray[np.generic]]:
        """The plan's buffers as arrays, for reference faces."""
        tables, split = self._regions["tables"].array(), self.plan.constants_bytes
        return {
            "arena": self._regions["arena"].array(),
            "weights": self._regions["weights"].array(),
            "constants": tables[:split],
            "taps": tables[split:],
        }


def _collect(
    schedule: Schedule, out: Mapping[str, NDArray[np.generic]], wanted: Mapping[int, EngineRequest]
) -> StepResult:
    """Outputs by logits row → by entry. Rows are in entry order: an entry's prompt logprobs, then its sample."""
    ids = out["token_ids"].tolist()
    tables: list[list[Any]] | None = None
    sampled: list[int | None] = []
    logprobs: list[TokenLogprobs | None] = []
    prompt: list[list[TokenLogprobs]] = []
    at = 0
    for entry in schedule.entries:
        request = wanted.get(entry.row)
        if request is not None and tables is None:
            tables = [out[name].tolist() for name in ("token_ids", "logprobs", "ranks", "top_ids", "top_logprobs")]
        end = at + entry.num_prompt_logprobs
        if request is not None and tables is not None and request.prompt_logprobs is not None:
            prompt.append([_token_logprobs(tables, row, request.prompt_logprobs) for row in range(at, end)])
        else:
            prompt.append([])
        asked = entry.samples and request is not None and request.logprobs is not None
        if asked and tables is not None and request is not None and request.logprobs is not None:
            logprobs.append(_token_logprobs(tables, end, request.logprobs))
        else:
            logprobs.append(None)
        sampled.append(ids[end] if entry.samples else None)
        at = end + entry.samples
    return StepResult(sampled, logprobs, prompt)


def _token_logprobs(tables: list[list[Any]], row: int, num_top: int) -> TokenLogprobs:
    token, logprob, rank, top_ids, top_logprobs = (table[row] for table in tables)
    top = list(zip(top_ids[:num_top], top_logprobs[:num_top], strict=True))
    return TokenLogprobs(token, logprob, rank, top)
