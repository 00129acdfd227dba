"""EngineCore: a loaded model, its queue and its loop; token ids only, no text, no sockets."""

from __future__ import annotations

import time
from collections.abc import Callable

from headrace.cache.kv_cache import KVCache
from headrace.config.engine import EngineConfig
from headrace.config.machine import choose_threads, memory_bounds, memory_budget
from headrace.core.errors import InvalidRequestError
from headrace.core.outputs import TokenDelta
from headrace.core.request import EngineRequest
from headrace.core.stats import EngineInfo, EngineStats, MemoryLine
from headrace.engine.loop import Loop, OverlappedLoop, PlainLoop
from headrace.observe.timeline import Timeline
from headrace.runner.memory_plan import layer_group_specs, plan_memory
from headrace.runner.model_runner import ModelRunner
from headrace.runner.planning import plan_model
from headrace.scheduler.limits import SchedulerLimits
from headrace.scheduler.scheduler import Scheduler
from headrace.weights.checkpoint import Checkpoint, open_checkpoint
from headrace.weights.hub import resolve_model

MEMORY_AGE_S = 1.0
"""How old the memory table in the statistics may be."""


class EngineCore:
    """A loaded model with its queue. Not thread-safe: one thread calls it.

    The constructor loads the model and produces one real token; it raises HeadraceError when an option, a file or
    the memory budget stands in the way. checkpoint: the model when it is open already. progress: called with packed
    weight bytes while loading. timeline: of a start that began earlier than here.
    """

    def __init__(
        self,
        config: EngineConfig,
        *,
        checkpoint: Checkpoint | None = None,
        progress: Callable[[int], None] | None = None,
        timeline: Timeline | None = None,
    ) -> None:
        self.config = config
        clock = timeline or Timeline()
        threads = choose_threads(config.num_threads, config.source("num_threads"))
        budget = memory_budget(config.memory_budget_bytes, config.source("memory_budget_bytes"), bounds=memory_bounds())
        checkpoint = checkpoint or open_checkpoint(resolve_model(config.model, config.revision))
        clock.end("open")
        planned = plan_model(config, checkpoint)
        specs = layer_group_specs(planned.plan, config.block_size)
        memory = plan_memory(planned.plan, config, specs, budget, num_threads=threads.num_threads)
        clock.end("plan")
        self.runner = ModelRunner(config, planned, memory, num_threads=threads.num_threads, progress=progress)
        clock.end_measured(self.runner.startup_s)
        limits = SchedulerLimits(
            max_num_seqs=config.max_num_seqs,
            max_num_batched_tokens=config.max_num_batched_tokens,
            max_model_len=planned.max_model_len,
            max_logits_rows=config.num_logits_rows,
            policy="priority" if config.scheduling_policy == "priority" else "fcfs",
        )

        def new_scheduler() -> Scheduler:
            cache = KVCache(specs, memory.num_blocks, enable_prefix_caching=config.enable_prefix_caching)
            return Scheduler(limits, cache)

        _produce_one_token(new_scheduler(), self.runner)
        clock.end("first_token")
        self._scheduler = new_scheduler()
        loop = OverlappedLoop if config.overlap else PlainLoop
        self._loop: Loop = loop(self._scheduler, self.runner)
        self._vocab_size = planned.model_config.vocab_size
        self._memory_lines, self._memory_read_s = self.runner.memory_lines(), time.monotonic()
        self.info = EngineInfo(
            model=config.model,
            architecture=planned.model_config.architecture,
            max_model_len=planned.max_model_len,
            max_num_seqs=config.max_num_seqs,
            max_num_batched_tokens=config.max_num_batched_tokens,
            vocab_size=self._vocab_size,
            block_size=config.block_size,
            num_blocks=self._scheduler.cache.num_usable_blocks,
            kv_tokens=memory.kv_tokens,
            isa=planned.plan.isa,
            num_threads=threads.num_threads,
            num_threads_source=threads.source,
            budget_bytes=budget.budget_bytes,
            budget_source=budget.source,
            structure_id=planned.plan.structure_id,
            numerics_id=planned.plan.numerics_id,
            revision=checkpoint.revision_hash,
            startup_s=clock.phases,
            memory=self._memory_lines,
        )

    @property
    def has_work(self) -> bool:
        return self._loop.has_work

    def add(self, request: EngineRequest) -> None:
        """Queue a request. Raises InvalidRequestError when it could never run; nothing is kept then."""
        ids = request.prompt_token_ids
        if not ids:
            raise InvalidRequestError("the prompt is empty", param="prompt")
        if min(ids) < 0 or max(ids) >= self._vocab_size:
            raise InvalidRequestError(f"token ids must be from 0 to {self._vocab_size - 1}", param="prompt")
        if request.logit_bias and not 0 <= min(request.logit_bias) <= max(request.logit_bias) < self._vocab_size:
            raise InvalidRequestError(f"token ids must be from 0 to {self._vocab_size - 1}", param="logit_bias")
        if max(request.logprobs or 0, request.prompt_logprobs or 0) > self.config.max_top_logprobs:
            raise InvalidRequestError(f"logprobs is at most {self.config.max_top_logprobs}", param="logprobs")
        self._scheduler.add(request)

    def abort(self, request_id: str) -> None:
        """End a request in whatever state it is; unknown ids are ignored."""
        self._scheduler.abort(request_id)

    def step(self) -> list[TokenDelta]:
        """One step: what it adds to each request. Empty when there was nothing to run."""
        return self._loop.step()

    def stats(self) -> EngineStats:
        """Gauges, counters and the memory table (at most MEMORY_AGE_S old)."""
        scheduler, counted = self._scheduler, self._scheduler.stats
        return EngineStats(
            num_running=scheduler.num_running,
            num_waiting=scheduler.num_waiting,
            num_blocks=scheduler.cache.num_usable_blocks,
            num_free_blocks=scheduler.cache.num_free_blocks,
            block_size=self.config.block_size,
            num_steps=counted.num_steps,
            num_preemptions=counted.num_preemptions,
            prefix_cache_queries=counted.prefix_cache_queries,
            prefix_cache_hits=counted.prefix_cache_hits,
            prompt_tokens=counted.prompt_tokens,
            generation_tokens=counted.generation_tokens,
            memory=self._recent_memory_lines(),
        )

    def _recent_memory_lines(self) -> list[MemoryLine]:
        # Asking the kernel takes milliseconds between two steps, and a scraper may ask all the time.
        now = time.monotonic()
        if now - self._memory_read_s > MEMORY_AGE_S:
            self._memory_read_s, self._memory_lines = now, self.runner.memory_lines()
        return self._memory_lines

    def check_integrity(self) -> None:
        """Raise RuntimeError when blocks, rows or queues do not add up."""
        self._scheduler.check_integrity()

    def close(self) -> None:
        """Stop the threads and give all memory back. Idempotent."""
        self.runner.close()


def _produce_one_token(scheduler: Scheduler, runner: ModelRunner) -> None:
    """Run the real path once, so that readiness means a token was produced."""
    scheduler.add(EngineRequest(request_id="warm-up", prompt_token_ids=[0], max_tokens=1, temperature=0.0))
    while scheduler.has_work:
        schedule = scheduler.schedule()
        scheduler.update(schedule, runner.execute(schedule))
