"""SchedulerStats: what the scheduler counts."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True)
class SchedulerStats:
    """Counters since the start; they only grow. Tokens unless said otherwise."""

    num_steps: int = 0
    """Steps completed."""
    num_preemptions: int = 0
    """Requests that lost their row and blocks, to be computed again."""
    prefix_cache_queries: int = 0
    """Prompt tokens looked up, once per request."""
    prefix_cache_hits: int = 0
    """Prompt tokens found."""
    prompt_tokens: int = 0
    """Of admitted requests."""
    generation_tokens: int = 0
