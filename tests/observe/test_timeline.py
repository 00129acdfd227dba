"""Phases follow each other and add up."""

from __future__ import annotations

import subprocess
import sys
import time

import pytest

from headrace.observe.timeline import Timeline, process_began_s


def test_phases_add_up_to_the_time_that_has_passed() -> None:
    began_s = time.monotonic() - 1.0
    timeline = Timeline(began_s)
    timeline.end("a")
    time.sleep(0.01)
    timeline.end("b")
    timeline.end("a")
    assert list(timeline.phases) == ["a", "b"]
    assert timeline.phases["a"] >= 1.0 and timeline.phases["b"] >= 0.01
    assert timeline.total_s == pytest.approx(sum(timeline.phases.values()))
    assert timeline.total_s <= time.monotonic() - began_s


def test_measured_phases_leave_the_rest_to_the_last() -> None:
    timeline = Timeline(time.monotonic() - 1.0)
    timeline.end_measured({"pack": 0.25, "bind": 0.5})
    assert timeline.phases["pack"] == 0.25
    assert timeline.phases["bind"] == pytest.approx(0.75, abs=0.1)


def test_a_process_knows_when_it_began() -> None:
    code = (
        "import time; time.sleep(0.2); from headrace.observe.timeline import process_began_s; "
        "print(process_began_s(), time.monotonic())"
    )
    before_s = time.monotonic()
    printed = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    began_s, then_s = map(float, printed.split())
    assert before_s - 0.011 <= began_s <= then_s - 0.2
    assert process_began_s() <= time.monotonic()
