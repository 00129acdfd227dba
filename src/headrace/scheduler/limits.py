"""SchedulerLimits: what one step and one request may take."""

from __future__ import annotations

from dataclasses import dataclass, fields

from headrace.core.errors import ConfigError

POLICIES = ("fcfs", "priority")


@dataclass(frozen=True, slots=True, kw_only=True)
class SchedulerLimits:
    """Fixed at start. Raises ConfigError for a count below 1 or an unknown policy."""

    max_num_seqs: int
    """Rows: requests that run at the same time."""
    max_num_batched_tokens: int
    """Tokens of one step, decode and prefill together."""
    max_model_len: int
    """Tokens of one sequence, prompt and output together."""
    max_logits_rows: int
    """Logits rows of one step: sampled tokens and prompt logprobs together."""
    policy: str = "fcfs"
    """fcfs: by arrival. priority: the lowest number first, and it takes rows and blocks from higher ones."""

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            if isinstance(value, int) and value < 1:
                raise ConfigError(f"{field.name} must be at least 1, got {value}", param=field.name)
        if self.policy not in POLICIES:
            raise ConfigError(f"policy must be one of {', '.join(POLICIES)}, got {self.policy!r}", param="policy")
