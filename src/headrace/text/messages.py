"""normalise_messages: chat messages as a caller sends them → messages a template can rely on.

What comes out: every message has `role` (system, user, assistant or tool) and `content` (a string; None only
beside `tool_calls`). Text parts are joined with a newline. `developer` becomes `system`. Tool call arguments,
JSON in a string on the wire, are objects. Every error names the JSON path of what is wrong.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any, NoReturn

from headrace.core.errors import InvalidRequestError, nearest

MAX_MESSAGES = 4096
MAX_CONTENT_PARTS = 1024
MAX_TOOL_CALLS = 128
MAX_NAME_CHARS = 256
MAX_ARGUMENTS_CHARS = 1 << 20

PART_SEPARATOR = "\n"
"""Between the text parts of one message."""

_ROLES = ("system", "developer", "user", "assistant", "tool")
_COMMON_FIELDS = {"role", "content", "name"}
_ASSISTANT_FIELDS = _COMMON_FIELDS | {"tool_calls", "reasoning_content", "reasoning", "refusal"}
_ECHOED_FIELDS = {"audio", "function_call", "annotations"}
"""Fields of an answer that clients send back with the history; fine while they are empty."""
_TOOL_FIELDS = _COMMON_FIELDS | {"tool_call_id"}
_NULLABLE_FIELDS = (_ASSISTANT_FIELDS | _ECHOED_FIELDS | _TOOL_FIELDS) - {"role", "content"}
"""Null in one of these says nothing, whatever the role: clients write out all the fields they know."""
_CALL_FIELDS = {"id", "type", "function", "index"}
_FUNCTION_FIELDS = {"name", "arguments"}
_TEXT_PARTS = {"text": "text", "refusal": "refusal"}
"""Part type → the field that holds its text."""


class Messages(list[dict[str, Any]]):
    """Messages that `normalise_messages` has been over."""


def normalise_messages(messages: object) -> Messages:
    """Check `messages` and bring them to the one shape templates see; the input is left alone.

    Its own result is returned as it is, so that everyone who needs checked messages may call it.
    Raises InvalidRequestError whose `param` is the path of the offending value, such as
    `messages[1].tool_calls[0].function.arguments`.
    """
    if isinstance(messages, Messages):
        return messages
    entries = _array(messages, "messages", MAX_MESSAGES)
    if not entries:
        _fail("messages", "must hold at least one message")
    return Messages(_message(entry, f"messages[{i}]") for i, entry in enumerate(entries))


def _message(entry: object, path: str) -> dict[str, Any]:
    given = _object(entry, path)
    fields = {name: value for name, value in given.items() if value is not None or name not in _NULLABLE_FIELDS}
    if "role" not in fields:
        _fail(f"{path}.role", "is missing")
    role = _string(fields["role"], f"{path}.role")
    if role not in _ROLES:
        _fail(f"{path}.role", f"must be one of {', '.join(_ROLES)}, not {_shown(role)}")
    if role == "assistant":
        return _assistant(fields, path)
    _known(fields, _TOOL_FIELDS if role == "tool" else _COMMON_FIELDS, path)
    if "content" not in fields:
        _fail(f"{path}.content", "is missing")
    message: dict[str, Any] = {
        "role": "system" if role == "developer" else role,
        "content": _content(fields["content"], f"{path}.content", ("text",)),
    }
    if role == "tool":
        message["tool_call_id"] = _short("tool_call_id", fields, path)
    return _named(message, fields, path)


def _assistant(fields: Mapping[str, Any], path: str) -> dict[str, Any]:
    _known(fields, _ASSISTANT_FIELDS | _ECHOED_FIELDS, path)
    for name in sorted(_ECHOED_FIELDS):
        if fields.get(name):
            _fail(f"{path}.{name}", "is not supported")
    tool_calls = _array(fields.get("tool_calls", []), f"{path}.tool_calls", MAX_TOOL_CALLS)
    refusal = fields.get("refusal")
    if "content" not in fields and not tool_calls and refusal is None:
        _fail(f"{path}.content", "is missing; an assistant message needs content or tool_calls")
    content: str | None = None
    if fields.get("content") is not None:
        content = _content(fields["content"], f"{path}.content", tuple(_TEXT_PARTS))
    elif refusal is not None:
        content = _string(refusal, f"{path}.refusal")
    elif not tool_calls:
        content = ""
    message: dict[str, Any] = {"role": "assistant", "content": content}
    for name in ("reasoning_content", "reasoning"):
        if name in fields:
            message["reasoning_content"] = _string(fields[name], f"{path}.{name}")
            break
    if tool_calls:
        message["tool_calls"] = [_tool_call(call, f"{path}.tool_calls[{i}]") for i, call in enumerate(tool_calls)]
    return _named(message, fields, path)


def _named(message: dict[str, Any], fields: Mapping[str, Any], path: str) -> dict[str, Any]:
    if "name" in fields:
        message["name"] = _short("name", fields, path)
    return message


def _content(value: object, path: str, part_types: tuple[str, ...]) -> str:
    """A string, or text parts joined with PART_SEPARATOR."""
    if isinstance(value, str):
        return value
    if not isinstance(value, list):
        _fail(path, f"must be a string or a list of parts, not {_kind(value)}")
    parts = _array(value, path, MAX_CONTENT_PARTS)
    if not parts:
        _fail(path, "must hold at least one part")
    return PART_SEPARATOR.join(_part(part, f"{path}[{i}]", part_types) for i, part in enumerate(parts))


def _part(part: object, path: str, part_types: tuple[str, ...]) -> str:
    fields = _object(part, path)
    if "type" not in fields:
        _fail(f"{path}.type", "is missing")
    kind = _string(fields["type"], f"{path}.type")
    if kind not in part_types:
        _fail(f"{path}.type", f"must be {' or '.join(part_types)}, not {_shown(kind)}; this model reads text only")
    name = _TEXT_PARTS[kind]
    _known(fields, {"type", name}, path)
    if name not in fields:
        _fail(f"{path}.{name}", "is missing")
    return _string(fields[name], f"{path}.{name}")


def _tool_call(call: object, path: str) -> dict[str, Any]:
    fields = _object(call, path)
    _known(fields, _CALL_FIELDS, path)
    call_type = fields.get("type", "function")
    if call_type != "function":
        _fail(f"{path}.type", f"must be function, not {_shown(call_type)}")
    if "function" not in fields:
        _fail(f"{path}.function", "is missing")
    function = _object(fields["function"], f"{path}.function")
    _known(function, _FUNCTION_FIELDS, f"{path}.function")
    return {
        "id": _short("id", fields, path),
        "type": "function",
        "function": {
            "name": _short("name", function, f"{path}.function"),
            "arguments": _arguments(function.get("arguments"), f"{path}.function.arguments"),
        },
    }


def _arguments(value: object, path: str) -> dict[str, Any]:
    """The object in a string of JSON. An empty string is the empty object: models write it for "no arguments"."""
    if value is None:
        _fail(path, "is missing")
    text = _string(value, path)
    if len(text) > MAX_ARGUMENTS_CHARS:
        _fail(path, f"has {len(text)} characters, {MAX_ARGUMENTS_CHARS} are allowed")
    if not text.strip():
        return {}
    try:
        arguments = json.loads(text, parse_constant=_no_constant)
    except (ValueError, RecursionError) as error:
        reason = "nested too deeply" if isinstance(error, RecursionError) else str(error)
        _fail(path, f"must be a JSON object in a string: {reason}")
    if not isinstance(arguments, dict):
        _fail(path, f"must be a JSON object in a string, not {_kind(arguments)}")
    return arguments


def _no_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is no JSON")


def _short(name: str, fields: Mapping[str, Any], path: str) -> str:
    """A required, non-empty identifier."""
    if fields.get(name) is None:
        _fail(f"{path}.{name}", "is missing")
    text = _string(fields[name], f"{path}.{name}")
    if not 1 <= len(text) <= MAX_NAME_CHARS:
        _fail(f"{path}.{name}", f"must have 1 to {MAX_NAME_CHARS} characters, got {len(text)}")
    return text


def _object(value: object, path: str) -> dict[str, Any]:
    if not isinstance(value, dict):
        _fail(path, f"must be an object, not {_kind(value)}")
    return value


def _array(value: object, path: str, limit: int) -> list[Any]:
    if not isinstance(value, list):
        _fail(path, f"must be a list, not {_kind(value)}")
    if len(value) > limit:
        _fail(path, f"has {len(value)} entries, {limit} are allowed")
    return value


def _string(value: object, path: str) -> str:
    if not isinstance(value, str):
        _fail(path, f"must be a string, not {_kind(value)}")
    return value


def _known(fields: Mapping[str, Any], known: Iterable[str], path: str) -> None:
    for name in fields:
        if name not in known:
            guess = nearest(str(name), known)
            _fail(f"{path}.{name}", "is not a known field" + (f"; did you mean {guess!r}?" if guess else ""))


def _shown(value: object) -> str:
    """`value` for a message, short however long it is."""
    shown = repr(value)
    return shown if len(shown) <= 80 else shown[:77] + "..."


def _kind(value: object) -> str:
    """The JSON name of a value's type."""
    names = {type(None): "null", bool: "a boolean", int: "a number", float: "a number", str: "a string"}
    return names.get(type(value)) or ("a list" if isinstance(value, list) else "an object")


def _fail(path: str, problem: str) -> NoReturn:
    raise InvalidRequestError(f"{path} {problem}", param=path)
