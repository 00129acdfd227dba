"""The exception tree.

HeadraceError                 anything headrace raises on purpose
├── InvalidRequestError       the caller sent something wrong (HTTP 400), names the parameter
│   ├── ContextLengthError    prompt plus output do not fit the context window
│   └── ModelNotFoundError    no such served model (HTTP 404)
├── ConfigError               an option is unknown, out of range or contradicts another
├── ModelFileError            a model file is corrupt or incomplete; names the key or tensor
├── UnsupportedModelError     the file is fine, but headrace has no such architecture or format
├── CapacityError             weights, arenas and KV do not fit the memory budget
├── EngineDeadError           the engine process is gone or was closed (HTTP 503)
└── RequestFaultError         one request failed inside the engine (HTTP 500); others go on
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class HeadraceError(Exception):
    """Base of all errors raised on purpose. `status` is the HTTP status the server answers with."""

    status: int = 500
    kind: str = "server_error"

    def __init__(self, message: str, *, param: str | None = None, code: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.param = param
        self.code = code


class InvalidRequestError(HeadraceError):
    """The request cannot be served as written. `param` names the field, `code` is machine-readable."""

    status = 400
    kind = "invalid_request_error"


class ContextLengthError(InvalidRequestError):
    """Prompt plus requested output exceed the context window."""

    def __init__(self, message: str, *, param: str | None = None) -> None:
        super().__init__(message, param=param, code="context_length_exceeded")


class ModelNotFoundError(InvalidRequestError):
    """The named model is not served here."""

    status = 404

    def __init__(self, message: str, *, param: str | None = "model") -> None:
        super().__init__(message, param=param, code="model_not_found")


class ConfigError(HeadraceError):
    """An option is unknown, out of range, or contradicts another one."""


class ModelFileError(HeadraceError):
    """A model file is corrupt, truncated or incomplete."""


class UnsupportedModelError(HeadraceError):
    """The model's architecture or weight format has no implementation here."""


class CapacityError(HeadraceError):
    """The model or the context does not fit the memory budget."""


class EngineDeadError(HeadraceError):
    """The engine is not there any more."""

    status = 503
    kind = "service_unavailable_error"


class RequestFaultError(HeadraceError):
    """One request failed inside the engine; every other request goes on."""


def nearest(name: str, known: Iterable[str]) -> str | None:
    """The known name closest to `name`, or None when nothing is close enough to suggest."""
    lowered = {k.lower(): k for k in known}
    found = difflib.get_close_matches(name.lower(), lowered, n=1, cutoff=0.6)
    return lowered[found[0]] if found else None


def unknown_name_message(what: str, name: str, known: Iterable[str]) -> str:
    """`unknown <what> 'name'` with a suggestion when one is near."""
    guess = nearest(name, known)
    return f"unknown {what} {name!r}" + (f"; did you mean {guess!r}?" if guess else "")
