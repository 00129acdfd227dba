"""The text of a scrape: the names, that a Prometheus parser reads it, and that the numbers are the right ones."""

from __future__ import annotations

import math

import pytest
from prometheus_client.parser import text_string_to_metric_families

from headrace.core.stats import EngineStats, MemoryLine
from headrace.observe.exposition import Histogram
from headrace.observe.metrics import Metrics

SHARED = {
    "num_requests_running",
    "num_requests_waiting",
    "kv_cache_usage_perc",
    "prefix_cache_queries_total",
    "prefix_cache_hits_total",
    "num_preemptions_total",
    "prompt_tokens_total",
    "generation_tokens_total",
    "request_success_total",
    "time_to_first_token_seconds",
    "inter_token_latency_seconds",
    "request_time_per_output_token_seconds",
    "e2e_request_latency_seconds",
    "request_prompt_tokens",
    "request_generation_tokens",
}
OWN = {"ready", "requests_rejected_total", "num_steps_total", "kv_blocks", "memory_bytes"}


class Clock:
    def __init__(self) -> None:
        self.now_s = 100.0

    def __call__(self) -> float:
        return self.now_s


def stats(**changes: int) -> EngineStats:
    values = {
        "num_running": 3,
        "num_waiting": 2,
        "num_blocks": 40,
        "num_free_blocks": 30,
        "block_size": 16,
        "num_steps": 7,
        "num_preemptions": 1,
        "prefix_cache_queries": 100,
        "prefix_cache_hits": 48,
        "prompt_tokens": 120,
        "generation_tokens": 55,
    }
    line = MemoryLine(name="weights", reserved_bytes=30, committed_bytes=20, resident_bytes=10)
    return EngineStats(**(values | changes), memory=[line])


def samples(text: str) -> dict[tuple[str, frozenset[tuple[str, str]]], float]:
    return {
        (s.name, frozenset(s.labels.items())): s.value for f in text_string_to_metric_families(text) for s in f.samples
    }


def value(text: str, name: str, **labels: str) -> float:
    return samples(text)[name, frozenset({"model_name": "m", **labels}.items())]


def families(text: str) -> set[str]:
    return {line.split(" ")[2] for line in text.splitlines() if line.startswith("# TYPE ")}


def test_the_names_are_the_contract() -> None:
    text = Metrics("m").scrape(stats())
    assert families(text) == {"headrace:" + n for n in SHARED | OWN} | {"vllm:" + n for n in SHARED}


def test_vllm_names_can_be_left_out() -> None:
    assert families(Metrics("m", vllm_names=False).scrape(stats())) == {"headrace:" + n for n in SHARED | OWN}


def test_both_prefixes_show_the_engines_numbers() -> None:
    text = Metrics("m").scrape(stats())
    for prefix in ("headrace:", "vllm:"):
        assert value(text, prefix + "num_requests_running") == 3
        assert value(text, prefix + "num_requests_waiting") == 2
        assert value(text, prefix + "kv_cache_usage_perc") == 0.25
        assert value(text, prefix + "prefix_cache_queries_total") == 100
        assert value(text, prefix + "prefix_cache_hits_total") == 48
        assert value(text, prefix + "num_preemptions_total") == 1
        assert value(text, prefix + "prompt_tokens_total") == 120
        assert value(text, prefix + "generation_tokens_total") == 55
    assert value(text, "headrace:num_steps_total") == 7
    assert value(text, "headrace:kv_blocks", state="free") == 30
    assert value(text, "headrace:memory_bytes", line="weights", kind="resident") == 10


def test_without_an_engine_the_requests_metrics_remain_and_ready_is_zero() -> None:
    text = Metrics("m").scrape(None)
    assert value(text, "headrace:ready") == 0
    assert value(text, "vllm:request_success_total", finished_reason="stop") == 0
    assert "num_requests_running" not in text
    assert value(Metrics("m").scrape(stats()), "headrace:ready") == 1
    assert value(Metrics("m").scrape(stats(), is_ready=False), "headrace:ready") == 0


def test_no_blocks_means_no_usage() -> None:
    assert value(Metrics("m").scrape(stats(num_blocks=0, num_free_blocks=0)), "vllm:kv_cache_usage_perc") == 0


def test_a_requests_times_land_in_the_histograms() -> None:
    clock = Clock()
    metrics = Metrics("m", clock=clock)
    timer = metrics.request_arrived()
    clock.now_s += 0.5
    timer.tokens(1)
    clock.now_s += 0.3
    timer.tokens(3)
    clock.now_s += 0.2
    timer.finish("length", num_prompt_tokens=11)
    text = metrics.scrape(None)
    assert value(text, "vllm:time_to_first_token_seconds_sum") == pytest.approx(0.5)
    assert value(text, "vllm:time_to_first_token_seconds_count") == 1
    assert value(text, "vllm:inter_token_latency_seconds_count") == 3
    assert value(text, "vllm:inter_token_latency_seconds_sum") == pytest.approx(0.3)
    assert value(text, "vllm:request_time_per_output_token_seconds_sum") == pytest.approx(0.1)
    assert value(text, "vllm:e2e_request_latency_seconds_sum") == pytest.approx(1.0)
    assert value(text, "vllm:request_prompt_tokens_sum") == 11
    assert value(text, "vllm:request_generation_tokens_sum") == 4
    assert value(text, "vllm:request_success_total", finished_reason="length") == 1
    assert (timer.arrived_s, timer.first_token_s, timer.finished_s) == pytest.approx((100.0, 100.5, 101.0))


def test_a_request_ends_once() -> None:
    metrics = Metrics("m", clock=Clock())
    timer = metrics.request_arrived()
    timer.finish("abort", 5)
    timer.finish("stop", 5)
    timer.tokens(1)
    assert metrics.finished == {"stop": 0, "length": 0, "abort": 1, "error": 0}
    assert metrics.time_to_first_token_s.count == 0
    assert metrics.generation_tokens.sum == 0


def test_buckets_are_cumulative_and_a_bound_belongs_to_its_bucket() -> None:
    histogram = Histogram((1.0, 2.0, 5.0))
    for v in (0.5, 1.0, 1.5, 5.0, 7.0):
        histogram.observe(v)
    assert histogram.counts == [2, 1, 1, 1]
    metrics = Metrics("m")
    metrics.time_to_first_token_s.observe(0.02)
    metrics.time_to_first_token_s.observe(1e9)
    text = metrics.scrape(None)
    name = "vllm:time_to_first_token_seconds_bucket"
    found = [(float(dict(k[1])["le"]), v) for k, v in samples(text).items() if k[0] == name]
    found.sort()
    assert [v for le, v in found if le < 0.02] == [0, 0, 0]
    assert {v for le, v in found if 0.02 <= le < math.inf} == {1}
    assert found[-1] == (math.inf, 2)


def test_a_model_name_cannot_break_the_format() -> None:
    name = 'a"b\\c\nd{}'
    text = Metrics(name).scrape(stats())
    assert {s.labels["model_name"] for f in text_string_to_metric_families(text) for s in f.samples} == {name}


def test_rejected_requests_are_counted_apart() -> None:
    metrics = Metrics("m")
    metrics.request_rejected()
    text = metrics.scrape(None)
    assert value(text, "headrace:requests_rejected_total") == 1
    assert value(text, "vllm:request_success_total", finished_reason="error") == 0
