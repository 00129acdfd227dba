"""Gates publish progress and wait when the header says so; meanwhile other threads may look, but not step."""

from __future__ import annotations

import threading

import numpy as np
import pytest

from headrace import _native
from headrace.runner import step_header as sh
from tests.native.toy_plan import PROMPT, ToyModel, decode_step, prefill


def test_one_thread_at_a_time_may_run_steps(model: ToyModel) -> None:
    model.executor.set_gate_timeout(20)
    errors: list[BaseException] = []

    def run() -> None:
        try:
            model.executor.step(_waiting(PROMPT, 0))
        except BaseException as error:
            errors.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    while model.executor.progress() != (0, 0):
        pass
    with pytest.raises(RuntimeError, match="one thread at a time"):
        model.executor.step(decode_step(0, 3))
    model.executor.raise_gate(0, 1)
    thread.join()
    assert not errors


def _waiting(prompt: list[int], step_id: int, target: int = 1) -> sh.Words:
    header = sh.decode(prefill(0, prompt, [3, 9], step_id=step_id))
    values = {name: getattr(header, name) for name in header.__slots__}
    return sh.encode_header(sh.StepHeader(**{**values, "gate_targets": ((0, target),), "waits_gates": True}))


def test_a_gate_waits_for_its_counter_with_progress_published_and_the_gil_free(model: ToyModel) -> None:
    model.executor.set_gate_timeout(20)
    assert model.executor.progress() == (-1, -1)
    seen: list[tuple[int, int]] = []

    def open_gate() -> None:
        while model.executor.progress() != (7, 0):
            pass
        seen.append(model.executor.progress())
        model.executor.raise_gate(0, 1)

    thread = threading.Thread(target=open_gate)
    thread.start()
    model.executor.step(_waiting(PROMPT, 7))
    thread.join()
    assert seen == [(7, 0)] and model.executor.progress() == (7, -1)
    expected = model.reference_logits(PROMPT)[-1]
    assert np.abs(model.logits[0] - expected).max() < 2e-5 * np.ptp(expected)


def test_a_gate_that_nobody_opens_ends_the_step_with_a_timeout_and_the_next_step_works(model: ToyModel) -> None:
    model.executor.set_gate_timeout(0.05)
    with pytest.raises(_native.GateTimeoutError, match="gate 0"):
        model.executor.step(_waiting(PROMPT, 0, target=2))
    assert model.executor.num_steps == 0 and model.executor.row_length(0) == len(PROMPT)
    model.executor.step(prefill(0, PROMPT, [3, 9], step_id=1))
    assert model.executor.num_steps == 1


def test_gates_do_not_wait_unless_the_header_asks(model: ToyModel) -> None:
    header = sh.decode(_waiting(PROMPT, 0, target=99))
    values = {name: getattr(header, name) for name in header.__slots__}
    model.executor.set_gate_timeout(0.05)
    model.executor.step(sh.encode_header(sh.StepHeader(**{**values, "waits_gates": False})))
    assert model.executor.num_steps == 1
