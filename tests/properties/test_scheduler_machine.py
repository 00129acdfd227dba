"""Whatever arrives, aborts or runs out, every request's tokens are those it would get alone and uncached."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from headrace.core.errors import InvalidRequestError
from headrace.core.request import EngineRequest
from headrace.scheduler import Scheduler, SchedulerLimits
from tests.scheduler.mock_model import VOCAB_SIZE, Engine, expected, make_cache

MAX_MODEL_LEN = 96

prompts = st.builds(
    lambda stem, length, tail: [(stem * 7 + i) % VOCAB_SIZE for i in range(length)] + tail,
    st.integers(0, 2),
    st.integers(0, 60),
    st.lists(st.integers(0, VOCAB_SIZE - 1), max_size=5),
)


@st.composite
def outputs_wanted(draw: st.DrawFn) -> dict[str, int | None]:
    """max_tokens may be 0 only where prompt logprobs are asked for."""
    if draw(st.integers(0, 3)):
        return {"max_tokens": draw(st.integers(1, 60))}
    return {"max_tokens": draw(st.integers(0, 20)), "prompt_logprobs": 0}


requests = st.builds(
    lambda wanted, **fields: EngineRequest(request_id="", **wanted, **fields),
    outputs_wanted(),
    prompt_token_ids=prompts,
    seed=st.integers(0, 1),
    sample_index=st.integers(0, 1),
    stop_token_ids=st.sampled_from([[], [], [3]]),
    priority=st.integers(0, 3),
    cache_salt=st.sampled_from([None, None, "salt"]),
)


class SchedulerMachine(RuleBasedStateMachine):
    """Random arrivals, aborts and steps on a pool that is too small for what is asked of it."""

    @initialize(
        max_num_seqs=st.integers(2, 6),
        max_num_batched_tokens=st.integers(1, 64),
        max_logits_rows=st.integers(1, 8),
        policy=st.sampled_from(["fcfs", "priority"]),
        num_blocks=st.integers(2, 9),
        two_groups=st.booleans(),
        enable_prefix_caching=st.sampled_from([True, True, False]),
        lag=st.integers(0, 2),
    )
    def start(
        self,
        max_num_seqs: int,
        max_num_batched_tokens: int,
        max_logits_rows: int,
        policy: str,
        num_blocks: int,
        two_groups: bool,
        enable_prefix_caching: bool,
        lag: int,
    ) -> None:
        limits = SchedulerLimits(
            max_num_seqs=max_num_seqs,
            max_num_batched_tokens=max_num_batched_tokens,
            max_model_len=MAX_MODEL_LEN,
            max_logits_rows=max_logits_rows,
            policy=policy,
        )
        counts, sizes = ((num_blocks, num_blocks), (16, 32)) if two_groups else ((num_blocks,), (16,))
        cache = make_cache(*counts, block_sizes=sizes, enable_prefix_caching=enable_prefix_caching)
        self.engine = Engine(Scheduler(limits, cache), lag)
        self.requests: dict[str, EngineRequest] = {}
        self.aborted: set[str] = set()

    @rule(templates=st.lists(requests, min_size=1, max_size=6))
    def arrive(self, templates: list[EngineRequest]) -> None:
        for template in templates:
            request = msgspec.structs.replace(template, request_id=f"request-{len(self.requests)}")
            num_prompt = len(request.prompt_token_ids)
            num_to_cache = min(num_prompt + max(request.max_tokens - 1, 0), MAX_MODEL_LEN - 1)
            if num_prompt == 0 or num_to_cache > self.engine.scheduler.cache.max_tokens:
                with pytest.raises(InvalidRequestError):
                    self.engine.add(request)
            else:
                self.engine.add(request)
                self.requests[request.request_id] = request

    @precondition(lambda self: self.requests)
    @rule(data=st.data())
    def abort(self, data: st.DataObject) -> None:
        name = data.draw(st.sampled_from(sorted(self.requests)))
        if self.engine.scheduler.abort(name):
            self.aborted.add(name)

    @rule(count=st.integers(1, 6))
    def step(self, count: int) -> None:
        for _ in range(count):
            self.engine.step()
            self.engine.scheduler.check_integrity()

    @invariant()
    def books_balance(self) -> None:
        self.engine.scheduler.check_integrity()

    def teardown(self) -> None:
        if not hasattr(self, "engine"):
            return
        self.engine.run()
        scheduler = self.engine.scheduler
        scheduler.check_integrity()
        assert scheduler.num_running == scheduler.num_waiting == 0
        assert scheduler.cache.num_free_blocks == scheduler.cache.num_usable_blocks
        for name, request in self.requests.items():
            output, alone = self.engine.outputs[name], expected(request, MAX_MODEL_LEN)
            if name in self.aborted:
                assert output.finish_reason is None
                assert output.token_ids == alone.token_ids[: len(output.token_ids)]
            else:
                assert output.token_ids == alone.token_ids
                assert output.prompt_logprobs == alone.prompt_logprobs
                assert output.finish_reason == alone.finish_reason
                assert output.stop_reason == alone.stop_reason


TestSchedulerMachine = SchedulerMachine.TestCase
TestSchedulerMachine.settings = settings(max_examples=40, stateful_step_count=20, deadline=None)
