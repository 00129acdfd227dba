from __future__ import annotations

import time

from headrace.core.outputs import StepResult
from tests.scheduler.mock_model import make_engine, request

NUM_ROWS = 64


def test_a_decode_step_of_64_rows_costs_less_than_half_a_millisecond() -> None:
    scheduler = make_engine(
        num_blocks=NUM_ROWS * 16, max_num_seqs=NUM_ROWS, max_num_batched_tokens=2048, max_logits_rows=NUM_ROWS
    ).scheduler
    for number in range(NUM_ROWS):
        scheduler.add(request(f"r{number}", [number] * 20, max_tokens=200))
    costs_s = []
    while scheduler.has_work:
        start_s = time.process_time()  # CPU time: other processes do not count
        schedule = scheduler.schedule()
        middle_s = time.process_time()
        result = StepResult([7] * NUM_ROWS, [None] * NUM_ROWS, [[] for _ in range(NUM_ROWS)])
        update_s = time.process_time()
        assert len(scheduler.update(schedule, result)) == NUM_ROWS
        costs_s.append(time.process_time() - update_s + middle_s - start_s)
    costs_s.sort()
    assert costs_s[len(costs_s) // 4] < 0.5e-3
