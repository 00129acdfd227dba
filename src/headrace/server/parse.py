"""Bytes of a request → a schema's struct, or an error that names the field.

JSON is scanned before it is parsed: depth and number of containers are bounded in linear time, so that no body
can exhaust the parser's stack. msgspec then checks grammar, types and ranges; a second, cheap pass over the
objects refuses what it lets through: a key twice in one object (RFC 8259 leaves its meaning open), endless keys.
"""

from __future__ import annotations

import json
import re
from typing import Any, TypeVar

import msgspec
from msgspec import inspect as types
from starlette.requests import Request

from headrace.core.errors import InvalidRequestError, unknown_name_message
from headrace.server.errors import PayloadTooLargeError, UnsupportedMediaTypeError
from headrace.server.limits import Limits

T = TypeVar("T")

_PATH = re.compile(r"^(.*?)(?: - at `(?:key in )?\$\.?(.*)`)?$", re.DOTALL)
_UNKNOWN_FIELD = re.compile(r"^Object contains unknown field `(.*)`$", re.DOTALL)
_MISSING_FIELD = re.compile(r"^Object missing required field `(.*)`$", re.DOTALL)
_LAST_INDEXES = re.compile(r"(\[\d+\])+$")
_NOT_BRACKETS = bytes(sorted(set(range(256)) - set(b"[]{}")))
_MAX_NAME_CHARS = 100
_MAX_MESSAGE_CHARS = 500


async def read_request(request: Request, schema: type[T], limits: Limits) -> T:
    """The body of `request` as a `schema`.

    Raises InvalidRequestError (400), PayloadTooLargeError (413), UnsupportedMediaTypeError (415).
    """
    media_type = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if media_type != "application/json" and not media_type.endswith("+json"):
        raise UnsupportedMediaTypeError(
            f"the body must be JSON: send the header 'Content-Type: application/json' (got {media_type[:100]!r})"
        )
    return parse(await read_body(request, limits.max_body_bytes), schema, limits)


async def read_body(request: Request, limit_bytes: int) -> bytes:
    """The whole body, unless it is longer than `limit_bytes`: then PayloadTooLargeError, the rest unread."""
    declared = request.headers.get("content-length", "")
    if declared.isascii() and declared.isdigit() and (len(declared) > 18 or int(declared) > limit_bytes):
        raise PayloadTooLargeError(f"the body is longer than this server reads: {limit_bytes} bytes")
    parts, num_bytes = [], 0
    async for part in request.stream():
        num_bytes += len(part)
        if num_bytes > limit_bytes:
            raise PayloadTooLargeError(f"the body is longer than this server reads: {limit_bytes} bytes")
        parts.append(part)
    return b"".join(parts)


def parse(body: bytes, schema: type[T], limits: Limits) -> T:
    """`body` as a `schema`; InvalidRequestError names the field (`param`) that is wrong."""
    _check_shape(body, limits)
    try:
        parsed = msgspec.json.decode(body, type=schema)
    except msgspec.ValidationError as error:
        raise _named(str(error), schema) from None
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise InvalidRequestError(f"the body is not valid JSON: {error}", code="invalid_json") from None
    _check_keys(body, limits)
    return parsed


def _check_shape(body: bytes, limits: Limits) -> None:
    """Bound nesting. Every step is one pass in C, but for the last: it is bounded by the number of containers."""
    if body.count(b"[") + body.count(b"{") <= limits.max_json_depth:
        return
    # Dropping escaped backslashes, then escaped quotes, leaves only the quotes that delimit strings.
    plain = body if b"\\" not in body else body.replace(b"\\\\", b"").replace(b'\\"', b"")
    brackets = b"".join(plain.split(b'"')[::2]).translate(None, _NOT_BRACKETS)
    if len(brackets) > 2 * limits.max_json_containers:
        raise InvalidRequestError(
            f"the body has more than {limits.max_json_containers} objects and arrays", code="json_too_large"
        )
    depth = 0
    for byte in brackets:
        depth += 1 if byte in b"[{" else -1
        if depth > limits.max_json_depth:
            raise InvalidRequestError(
                f"the body is nested more than {limits.max_json_depth} levels deep", code="json_too_deep"
            )


def _check_keys(body: bytes, limits: Limits) -> None:
    def check(pairs: list[tuple[str, Any]]) -> None:
        names = {name for name, _ in pairs}
        if len(names) != len(pairs):
            counted: set[str] = set()
            twice = next(n for n, _ in pairs if n in counted or counted.add(n))  # type: ignore[func-returns-value]
            twice = twice[:_MAX_NAME_CHARS]
            raise InvalidRequestError(f"the key {twice!r} occurs twice in one object", param=twice, code="invalid_json")
        for name in names:
            if len(name) > limits.max_key_chars:
                raise InvalidRequestError(
                    f"a key has {len(name)} characters; at most {limits.max_key_chars} are read", code="invalid_json"
                )

    json.loads(body, object_pairs_hook=check)


def _named(message: str, schema: Any) -> InvalidRequestError:
    """msgspec's sentence and path as an error of ours."""
    match = _PATH.match(message)
    text, path = (match[1], match[2] or "") if match else (message, "")
    path = path[:_MAX_NAME_CHARS]
    if unknown := _UNKNOWN_FIELD.match(text):
        name = unknown[1][:_MAX_NAME_CHARS]
        where = f" in {path}" if path else ""
        suggestion = unknown_name_message("field", name, field_names(schema, path))
        return InvalidRequestError(suggestion + where, param=_join(path, name), code="unknown_field")
    if missing := _MISSING_FIELD.match(text):
        param = _join(path, missing[1])
        return InvalidRequestError(f"{param} is required", param=param, code="missing_field")
    text = text[:_MAX_MESSAGE_CHARS]
    if not path:
        return InvalidRequestError(f"the body must be an object: {text}")
    path = path.replace("[...]", "")
    # An item of a plain list is the list's fault: `prompt[3]` is `prompt`, but `messages[3].role` stays.
    param = _LAST_INDEXES.sub("", path)
    return InvalidRequestError(f"{path}: {text[0].lower()}{text[1:]}", param=param, code="invalid_value")


def _join(path: str, name: str) -> str:
    return f"{path}.{name}" if path else name


def field_names(schema: Any, path: str) -> list[str]:
    """Names of the fields of the struct that `path` (like `messages[0].function`) leads to; [] when it is none."""
    here = [types.type_info(schema)]
    for step in re.findall(r"[^.\[\]]+|\[[^\]]*\]", path):
        here = [inner for outer in _flat(here) for inner in _inside(outer, step)]
    return [field.encode_name for kind in _flat(here) if isinstance(kind, types.StructType) for field in kind.fields]


def _flat(kinds: list[types.Type]) -> list[types.Type]:
    found: list[types.Type] = []
    for kind in kinds:
        found += _flat(list(kind.types)) if isinstance(kind, types.UnionType) else [kind]
    return found


def _inside(kind: types.Type, step: str) -> list[types.Type]:
    if isinstance(kind, types.StructType):
        return [field.type for field in kind.fields if field.encode_name == step]
    if isinstance(kind, types.ListType) and step.startswith("["):
        return [kind.item_type]
    if isinstance(kind, types.DictType) and step.startswith("["):
        return [kind.value_type]
    return []
