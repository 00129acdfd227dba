"""The metrics of a server: what the engine counts, and what each request's clock said.

Names are a contract. Each metric has the prefix `headrace:`; those that vLLM has too are also given under `vllm:`, so
that existing dashboards and autoscalers work unchanged. `tests/observe` holds the list.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator

from headrace.core.outputs import FinishReason
from headrace.core.stats import EngineStats
from headrace.observe.exposition import CONTENT_TYPE, Family, Histogram, render

OWN_PREFIX, VLLM_PREFIX = "headrace:", "vllm:"

FINISH_REASONS: tuple[FinishReason, ...] = ("stop", "length", "abort", "error")

_FIRST_TOKEN_S = (
    0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0,
    20.0, 40.0, 80.0, 160.0, 640.0, 2560.0,
)  # fmt: skip
_PER_TOKEN_S = (
    0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0,
    20.0, 40.0, 80.0,
)  # fmt: skip
_REQUEST_S = (
    0.03, 0.1, 0.3, 0.5, 0.8, 1.0, 1.5, 2.0, 2.5, 5.0, 10.0, 15.0, 20.0, 30.0, 40.0, 50.0, 60.0, 120.0, 240.0, 480.0,
    960.0, 1920.0, 7680.0,
)  # fmt: skip
_TOKENS = (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10000, 20000, 50000, 100000, 200000, 500000, 1000000)

Clock = Callable[[], float]


class Metrics:
    """Everything /metrics shows. Used from one thread (the server's event loop); rendering costs well under 1 ms.

    model_name: the value of the label `model_name` on every sample.
    vllm_names: give vLLM's names beside ours.
    """

    def __init__(self, model_name: str, *, vllm_names: bool = True, clock: Clock = time.monotonic) -> None:
        self._labels = {"model_name": model_name}
        self._vllm_names = vllm_names
        self.clock = clock
        self.time_to_first_token_s = Histogram(_FIRST_TOKEN_S)
        self.inter_token_latency_s = Histogram(_PER_TOKEN_S)
        self.time_per_output_token_s = Histogram(_PER_TOKEN_S)
        self.request_latency_s = Histogram(_REQUEST_S)
        self.prompt_tokens = Histogram(_TOKENS)
        self.generation_tokens = Histogram(_TOKENS)
        self.finished: dict[FinishReason, int] = dict.fromkeys(FINISH_REASONS, 0)
        self.num_rejected = 0

    def request_arrived(self) -> RequestTimer:
        """The clock of one completion starts now."""
        return RequestTimer(self)

    def request_rejected(self) -> None:
        """A request ended before it reached the engine: invalid, too long, no such model."""
        self.num_rejected += 1

    def scrape(self, stats: EngineStats | None, *, is_ready: bool | None = None) -> str:
        """The text of /metrics (`CONTENT_TYPE`). stats: the engine's; None while there is none to ask."""
        ready = stats is not None if is_ready is None else is_ready
        shared = [*(() if stats is None else _engine_families(stats)), *self._request_families()]
        families = [f.renamed(OWN_PREFIX + f.name) for f in shared]
        families += [f.renamed(OWN_PREFIX + f.name) for f in self._own_families(stats, ready)]
        if self._vllm_names:
            families += [f.renamed(VLLM_PREFIX + f.name) for f in shared]
        return render(families, self._labels)

    def _request_families(self) -> Iterator[Family]:
        reasons = [({"finished_reason": r}, float(n)) for r, n in self.finished.items()]
        yield Family("request_success_total", "counter", "Completions that ended, by how.", reasons)
        for name, help_, histogram in (
            ("time_to_first_token_seconds", "From arrival to the first token.", self.time_to_first_token_s),
            ("inter_token_latency_seconds", "Between tokens of one completion.", self.inter_token_latency_s),
            (
                "request_time_per_output_token_seconds",
                "Mean time per token of a completion, after its first.",
                self.time_per_output_token_s,
            ),
            ("e2e_request_latency_seconds", "From arrival to the last token.", self.request_latency_s),
            ("request_prompt_tokens", "Prompt tokens per completion.", self.prompt_tokens),
            ("request_generation_tokens", "Generated tokens per completion.", self.generation_tokens),
        ):
            yield Family(name, "histogram", help_, [({}, histogram)])

    def _own_families(self, stats: EngineStats | None, ready: bool) -> Iterator[Family]:
        yield Family("ready", "gauge", "1 when requests are answered, 0 while loading or dead.", [({}, float(ready))])
        num_rejected = float(self.num_rejected)
        yield Family(
            "requests_rejected_total", "counter", "Requests that never reached the engine.", [({}, num_rejected)]
        )
        if stats is None:
            return
        yield Family("num_steps_total", "counter", "Steps the engine has run.", [({}, float(stats.num_steps))])
        blocks = [({"state": "all"}, float(stats.num_blocks)), ({"state": "free"}, float(stats.num_free_blocks))]
        yield Family("kv_blocks", "gauge", "KV cache blocks; free ones may hold reusable prefixes.", blocks)
        memory = [
            ({"line": line.name, "kind": kind}, float(num_bytes))
            for line in stats.memory
            for kind, num_bytes in (
                ("reserved", line.reserved_bytes),
                ("committed", line.committed_bytes),
                ("resident", line.resident_bytes),
            )
        ]
        yield Family("memory_bytes", "gauge", "The engine's memory table.", memory)


def _engine_families(stats: EngineStats) -> Iterator[Family]:
    used = 1.0 - stats.num_free_blocks / stats.num_blocks if stats.num_blocks else 0.0
    kinds: tuple[tuple[str, str, float], ...] = (
        ("num_requests_running", "Requests being computed.", stats.num_running),
        ("num_requests_waiting", "Requests in the queue.", stats.num_waiting),
        ("kv_cache_usage_perc", "Share of KV cache blocks in use, from 0 to 1.", used),
        ("prefix_cache_queries_total", "Prompt tokens looked up in the prefix cache.", stats.prefix_cache_queries),
        ("prefix_cache_hits_total", "Prompt tokens found in the prefix cache.", stats.prefix_cache_hits),
        ("num_preemptions_total", "Times a running request was put back into the queue.", stats.num_preemptions),
        ("prompt_tokens_total", "Prompt tokens of admitted requests.", stats.prompt_tokens),
        ("generation_tokens_total", "Tokens generated.", stats.generation_tokens),
    )
    for name, help_, value in kinds:
        yield Family(name, "counter" if name.endswith("_total") else "gauge", help_, [({}, float(value))])


class RequestTimer:
    """One completion's clock. Times are kept on it, so logs and response headers can show them too.

    Call `tokens` when tokens arrive and `finish` once; what comes after `finish` is ignored.
    """

    __slots__ = ("_metrics", "arrived_s", "finished_s", "first_token_s", "last_token_s", "num_tokens")

    def __init__(self, metrics: Metrics) -> None:
        self._metrics = metrics
        self.arrived_s = metrics.clock()
        self.first_token_s: float | None = None
        self.last_token_s: float | None = None
        self.finished_s: float | None = None
        self.num_tokens = 0

    def tokens(self, num_tokens: int) -> None:
        """`num_tokens` have arrived together; each counts as an equal share of the time since the last ones."""
        if num_tokens < 1 or self.finished_s is not None:
            return
        now_s = self._metrics.clock()
        if self.last_token_s is None:
            self.first_token_s = now_s
            self._metrics.time_to_first_token_s.observe(now_s - self.arrived_s)
        else:
            self._metrics.inter_token_latency_s.observe((now_s - self.last_token_s) / num_tokens, num_tokens)
        self.last_token_s = now_s
        self.num_tokens += num_tokens

    def finish(self, reason: FinishReason, num_prompt_tokens: int) -> None:
        """The completion has ended, for whatever reason; its client leaving counts as "abort"."""
        if self.finished_s is not None:
            return
        self.finished_s = self._metrics.clock()
        metrics = self._metrics
        metrics.finished[reason] += 1
        metrics.request_latency_s.observe(self.finished_s - self.arrived_s)
        metrics.prompt_tokens.observe(num_prompt_tokens)
        metrics.generation_tokens.observe(self.num_tokens)
        if self.num_tokens > 1 and self.first_token_s is not None and self.last_token_s is not None:
            per_token_s = (self.last_token_s - self.first_token_s) / (self.num_tokens - 1)
            metrics.time_per_output_token_s.observe(per_token_s)


__all__ = ["CONTENT_TYPE", "FINISH_REASONS", "Metrics", "RequestTimer"]
