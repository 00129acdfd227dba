"""Logs: one event is one line whatever is in it, and levels mean what they say."""

from __future__ import annotations

import io
import json
import logging
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.core.errors import ConfigError
from headrace.observe import logs


@pytest.fixture(autouse=True)
def _restored() -> Iterator[None]:
    root = logging.getLogger("headrace")
    before = list(root.handlers), root.level, root.propagate
    yield
    root.handlers[:], root.propagate = before[0], before[2]
    root.setLevel(before[1])


def written(level: str = "info", *, as_json: bool = False) -> io.StringIO:
    stream = io.StringIO()
    logs.setup(level, as_json=as_json, stream=stream)
    return stream


def test_a_line_has_time_level_part_message_and_fields() -> None:
    out = written()
    logs.logger("engine").info("loaded the model", seconds=1.25, name="a b", path="x", empty="")
    time, line = out.getvalue().split(" ", 1)
    assert line == 'INFO engine: loaded the model seconds=1.25 name="a b" path=x empty=""\n'
    assert len(time) == len("2026-12-01T14:20:11.123Z")
    assert time.endswith("Z")


@given(st.text(), st.text())
def test_nothing_that_is_logged_can_forge_a_line(message: str, value: str) -> None:
    out = written()
    logs.logger("x").warning(message, value=value)
    text = out.getvalue()
    assert text.endswith("\n")
    assert text[:-1].isprintable()
    logs_as_json = written(as_json=True)
    logs.logger("x").warning(message, value=value)
    line = json.loads(logs_as_json.getvalue())
    assert (line["message"], line["value"]) == (message, value)
    assert len(logs_as_json.getvalue().split("\n")) == 2


def test_levels_filter_and_can_change() -> None:
    out = written("warning")
    log = logs.logger("x")
    log.info("no")
    logs.set_level("debug")
    log.debug("yes")
    assert [line.split(" ")[1:] for line in out.getvalue().splitlines()] == [["DEBUG", "x:", "yes"]]


def test_an_unknown_level_is_refused_with_the_nearest() -> None:
    with pytest.raises(ConfigError, match="did you mean 'warning'"):
        logs.setup("warnin")


def test_setting_up_twice_writes_once() -> None:
    first, second = written(), written()
    logs.logger("x").info("hello")
    assert first.getvalue() == ""
    assert second.getvalue().count("hello") == 1


def test_an_exception_brings_its_traceback() -> None:
    out, log = written(), logs.logger("x")
    try:
        raise ValueError("boom")
    except ValueError:
        log.exception("failed", step=3)
    lines = out.getvalue().splitlines()
    assert lines[0].endswith("ERROR x: failed step=3")
    assert lines[-1] == "  ValueError: boom"
    as_json = written(as_json=True)
    try:
        raise ValueError("boom")
    except ValueError:
        log.exception("failed")
    assert json.loads(as_json.getvalue())["traceback"].endswith("ValueError: boom")


def test_records_of_plain_logging_are_written_too() -> None:
    out = written()
    logging.getLogger("headrace.weights").warning("%d tensors", 3)
    assert out.getvalue().endswith("WARNING weights: 3 tensors\n")


def test_without_setup_an_embedding_program_gets_the_records(caplog: pytest.LogCaptureFixture) -> None:
    root = logging.getLogger("headrace")
    root.handlers[:], root.propagate = [], True
    with caplog.at_level("INFO", logger="headrace"):
        logs.logger("x").info("hello", a=1)
    assert [r.getMessage() for r in caplog.records] == ["hello"]
    assert caplog.records[0].filename == "test_logs.py"
