"""What an executor refuses to be, how it ends, and what it leaves alone."""

from __future__ import annotations

import ctypes
import os
import platform
import threading

import pytest

from headrace import _native
from tests.native.toy_plan import CALL_DTYPE, LAYERS, PROMPT, ToyModel, decode_step, generate, prefill


@pytest.mark.skipif(platform.machine() != "x86_64", reason="the number of the rounding mode is x86's")
@pytest.mark.parametrize("num_threads", [1, 2])
def test_the_callers_rounding_mode_neither_matters_nor_changes(num_threads: int) -> None:
    toy, header = ToyModel(num_threads=num_threads), prefill(0, PROMPT, [3, 9])
    toy.executor.step(header)
    expected = toy.logits[0].tobytes()
    libm = ctypes.CDLL("libm.so.6")
    upward = 0x800
    libm.fesetround(upward)
    try:
        toy.executor.step(header)
        mode = libm.fegetround()
    finally:
        libm.fesetround(0)
    assert mode == upward
    assert toy.logits[0].tobytes() == expected
    toy.executor.close()


def test_a_closed_executor_says_so_and_its_views_stay_readable() -> None:
    toy = ToyModel(num_threads=2)
    toy.executor.step(prefill(0, PROMPT, [3, 9]))
    tokens, outputs = toy.executor.row_tokens(0), toy.executor.outputs()
    toy.executor.close()
    toy.executor.close()
    with pytest.raises(RuntimeError, match="closed"):
        toy.executor.step(decode_step(0, len(PROMPT)))
    assert tokens[: len(PROMPT)].tolist() == PROMPT and outputs["token_ids"].shape == (1,)


@pytest.mark.parametrize(("isa", "num_threads"), [("sse9", 1), ("portable", 0), ("portable", -3), ("portable", 5000)])
def test_an_executor_that_cannot_be_is_refused(isa: str, num_threads: int) -> None:
    with pytest.raises(ValueError):
        _native.Executor(isa, num_threads)


def test_nonsense_plans_are_refused(model: ToyModel) -> None:
    plan = model.calls.copy()
    for field, index, value in [
        ("op", (3,), 99),
        ("ptr", (1, 0), 0),
        ("dim", (1, 0), -4),
        ("dim", (1, 2), 7),
        ("flags", (0,), 1),
    ]:
        damaged = plan.copy()
        damaged[field][index] = value
        with pytest.raises(ValueError, match=r"plan call"):
            model.executor.load_plan(damaged.tobytes(), [0])
    with pytest.raises(ValueError, match="232"):
        model.executor.load_plan(plan.tobytes()[:-1], [0])
    for starts in ([], [1], [0, 5, 3], [0, 1000]):
        with pytest.raises(ValueError, match="segments"):
            model.executor.load_plan(plan.tobytes(), starts)
    out_of_block = plan.copy()
    out_of_block["dim"][3, 1] = LAYERS
    model.executor.load_plan(out_of_block.tobytes(), [0])
    with pytest.raises(ValueError, match="KV block"):
        model.executor.step(prefill(0, PROMPT, [3, 9]))
    model.executor.load_plan(plan.tobytes(), [0])
    model.executor.step(prefill(0, PROMPT, [3, 9]))


def test_memory_is_sized_once_and_grows_with_rows_and_threads(model: ToyModel) -> None:
    before = model.executor.memory_bytes()
    generate(model, PROMPT, 5, top_p=0.5, temperature=1.0, num_logprobs=5)
    assert model.executor.memory_bytes() == before
    assert before > model.max_num_seqs * model.max_model_len * 4
    for larger in (ToyModel(num_threads=3), ToyModel(num_threads=2, max_num_seqs=50)):
        assert larger.executor.memory_bytes() > before
        larger.executor.close()


def test_the_call_record_has_no_padding() -> None:
    assert CALL_DTYPE.itemsize == 232


@pytest.mark.skipif(not hasattr(os, "fork"), reason="fork is a POSIX call")
@pytest.mark.filterwarnings("ignore:.*multi-threaded.*:DeprecationWarning")
def test_an_executor_says_that_it_does_not_survive_fork(model: ToyModel) -> None:
    pid = os.fork()
    if pid == 0:
        try:
            model.executor.step(prefill(0, PROMPT, [3, 9]))
        except RuntimeError as error:
            os._exit(7 if "fork" in str(error) else 1)
        os._exit(2)
    _, status = os.waitpid(pid, 0)
    assert os.waitstatus_to_exitcode(status) == 7


def test_an_idle_executor_uses_no_cpu(model: ToyModel) -> None:
    generate(model, PROMPT, 2)
    done = threading.Event()
    before = os.times()
    done.wait(0.3)
    after = os.times()
    assert (after.user - before.user) + (after.system - before.system) < 0.1
