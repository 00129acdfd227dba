"""Structured logs: one event is one line, its fields are `key=value` (or one JSON object).

Built on the standard library's logging under the name `headrace`, so an embedding program can take the records over:
without `setup` nothing is installed and the usual defaults hold.
"""

from __future__ import annotations

import json
import logging
import sys
from datetime import UTC, datetime
from typing import Any, TextIO

from headrace.core.errors import ConfigError, unknown_name_message

LEVELS = {"debug": logging.DEBUG, "info": logging.INFO, "warning": logging.WARNING, "error": logging.ERROR}

_ROOT = "headrace"
_FIELDS = "headrace_fields"


class Logger:
    """`log.info("loaded the model", seconds=1.2)`: fields are values with a short text, never secrets."""

    __slots__ = ("_logger",)

    def __init__(self, logger: logging.Logger) -> None:
        self._logger = logger

    def debug(self, message: str, /, **fields: Any) -> None:
        self._log(logging.DEBUG, message, fields)

    def info(self, message: str, /, **fields: Any) -> None:
        self._log(logging.INFO, message, fields)

    def warning(self, message: str, /, **fields: Any) -> None:
        self._log(logging.WARNING, message, fields)

    def error(self, message: str, /, **fields: Any) -> None:
        self._log(logging.ERROR, message, fields)

    def exception(self, message: str, /, **fields: Any) -> None:
        """An error with the traceback of the exception being handled."""
        self._log(logging.ERROR, message, fields, exc_info=True)

    def _log(self, level: int, message: str, fields: dict[str, Any], *, exc_info: bool = False) -> None:
        if self._logger.isEnabledFor(level):
            self._logger.log(level, "%s", message, extra={_FIELDS: fields}, exc_info=exc_info, stacklevel=3)


def logger(name: str) -> Logger:
    """The logger of a part, e.g. `logger("engine")`."""
    return Logger(logging.getLogger(f"{_ROOT}.{name}"))


def setup(level: str = "info", *, as_json: bool = False, stream: TextIO | None = None) -> None:
    """Write headrace's records to `stream` (standard error). Called again it replaces what it installed before.

    Raises ConfigError for an unknown level.
    """
    root = logging.getLogger(_ROOT)
    for old in [h for h in root.handlers if isinstance(h, _Handler)]:
        root.removeHandler(old)
    handler = _Handler(stream if stream is not None else sys.stderr)
    handler.setFormatter(JsonFormatter() if as_json else LineFormatter())
    root.addHandler(handler)
    root.propagate = False
    set_level(level)


def set_level(level: str) -> None:
    """Change the level; raises ConfigError for an unknown one."""
    number = LEVELS.get(level.lower())
    if number is None:
        raise ConfigError(unknown_name_message("log level", level, LEVELS), param="log_level")
    logging.getLogger(_ROOT).setLevel(number)


class _Handler(logging.StreamHandler[TextIO]):
    """Told apart from handlers that an embedding program installs."""


class LineFormatter(logging.Formatter):
    """`2026-12-01T14:20:11.123Z INFO engine: loaded the model seconds=1.2`; a traceback follows, indented."""

    def format(self, record: logging.LogRecord) -> str:
        head = f"{_timestamp(record)} {record.levelname} {_part(record)}: {_one_line(record.getMessage())}"
        fields = "".join(f" {key}={_field_text(value)}" for key, value in _fields(record).items())
        if not record.exc_info:
            return head + fields
        return head + fields + "\n" + "\n".join("  " + s for s in self.formatException(record.exc_info).splitlines())


class JsonFormatter(logging.Formatter):
    """One JSON object a line: time, level, part, message, the fields, and traceback if there is one."""

    def format(self, record: logging.LogRecord) -> str:
        line = {"time": _timestamp(record), "level": record.levelname.lower(), "part": _part(record)}
        line["message"] = record.getMessage()
        if record.exc_info:
            line["traceback"] = self.formatException(record.exc_info)
        return json.dumps(_fields(record) | line, default=str, ensure_ascii=False)


def _timestamp(record: logging.LogRecord) -> str:
    moment = datetime.fromtimestamp(record.created, UTC)
    return moment.strftime("%Y-%m-%dT%H:%M:%S.") + f"{moment.microsecond // 1000:03d}Z"


def _part(record: logging.LogRecord) -> str:
    return record.name.removeprefix(_ROOT + ".")


def _fields(record: logging.LogRecord) -> dict[str, Any]:
    fields: dict[str, Any] = getattr(record, _FIELDS, {})
    return fields


def _one_line(text: str) -> str:
    """Control characters escaped: what a client sent must not forge a line or drive a terminal."""
    return (
        text
        if text.isprintable()
        else "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)
    )


def _field_text(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:.6g}"
    text = str(value)
    if text and text.isprintable() and not any(c in text for c in ' "='):
        return text
    return '"' + _one_line(text.replace("\\", "\\\\").replace('"', '\\"')) + '"'
