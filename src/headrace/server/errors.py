"""OpenAI's error body, for every status this server answers with."""

from __future__ import annotations

import msgspec
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

from headrace.core.errors import HeadraceError, nearest
from headrace.observe import logs
from headrace.server.serving import serving_of

_log = logs.logger("server")

RETRY_AFTER_S = 1
"""What a 503 suggests: loading a small model takes about as long."""

_KINDS = {404: "not_found_error", 405: "invalid_request_error", 503: "service_unavailable_error"}


class ErrorDetail(msgspec.Struct):
    """What went wrong: a sentence, a class of errors, the field it is about, a machine-readable code."""

    message: str
    type: str
    param: str | None = None
    code: str | None = None


class ErrorBody(msgspec.Struct):
    """The body of every answer that is not 2xx, and of an error event in a stream."""

    error: ErrorDetail


class PayloadTooLargeError(HeadraceError):
    """The body is longer than the server reads."""

    status = 413
    kind = "invalid_request_error"


class HeadersTooLargeError(HeadraceError):
    """The headers are longer than the server reads."""

    status = 431
    kind = "invalid_request_error"


class UnsupportedMediaTypeError(HeadraceError):
    """The body is not declared to be JSON."""

    status = 415
    kind = "invalid_request_error"


def error_body(error: Exception) -> ErrorBody:
    """The body for `error`. What nobody raised on purpose is not described to the client."""
    if isinstance(error, HeadraceError):
        return ErrorBody(ErrorDetail(error.message, error.kind, error.param, error.code))
    return ErrorBody(ErrorDetail("internal error; the server's log has the details", "server_error"))


def error_response(error: Exception) -> Response:
    """The whole answer for `error`."""
    status = error.status if isinstance(error, HeadraceError) else 500
    headers = {"retry-after": str(RETRY_AFTER_S)} if status == 503 else {}
    return json_response(error_body(error), status, headers)


def json_response(body: object, status: int = 200, headers: dict[str, str] | None = None) -> Response:
    """`body`, a msgspec struct or builtins, as JSON."""
    return Response(msgspec.json.encode(body), status, headers, media_type="application/json")


def log_fault(error: BaseException, request_id: str) -> None:
    """A fault of ours that ended one request, with its traceback."""
    try:
        raise error
    except BaseException:
        _log.exception("a request failed", request_id=request_id)


async def on_headrace_error(request: Request, error: Exception) -> Response:
    """Exception handler for errors raised on purpose."""
    if isinstance(error, HeadraceError) and error.status < 500:
        serving_of(request).metrics.request_rejected()
    if isinstance(error, HeadraceError) and error.status == 500:
        log_fault(error, request.scope["state"].get("request_id", "?"))
    return error_response(error)


async def on_http_error(request: Request, error: Exception) -> Response:
    """Exception handler for what the router raises: no such path, no such method."""
    if not isinstance(error, HTTPException):
        return error_response(error)
    message, code = error.detail, None
    path = request.scope["path"]
    if error.status_code == 404:
        guess = nearest(path, known_paths(request))
        message = f"no such endpoint: {path}" + (f"; did you mean {guess}?" if guess and guess != path else "")
        code = "unknown_url"
    elif error.status_code == 405:
        allowed = (error.headers or {}).get("Allow", "")
        message, code = f"{path} does not answer {request.method}; it answers {allowed}", "method_not_allowed"
    kind = _KINDS.get(error.status_code, "invalid_request_error" if error.status_code < 500 else "server_error")
    return json_response(
        ErrorBody(ErrorDetail(message, kind, None, code)), error.status_code, dict(error.headers or {})
    )


def known_paths(request: Request) -> list[str]:
    """Paths this application routes, for suggestions."""
    return [path for route in request.app.routes if (path := getattr(route, "path", None))]
