"""The application: routes, request ids, and errors in OpenAI's shape whatever goes wrong."""

from __future__ import annotations

import re
import uuid

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.routing import Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from headrace.config.server import ServerConfig
from headrace.core.errors import HeadraceError
from headrace.observe.metrics import Metrics
from headrace.server.errors import HeadersTooLargeError, error_response, log_fault, on_headrace_error, on_http_error
from headrace.server.limits import DEFAULT_LIMITS, Limits
from headrace.server.openapi.document import docs_page, openapi_document
from headrace.server.routes import service
from headrace.server.routes.chat import chat_completions
from headrace.server.routes.completions import completions
from headrace.server.serving import AsyncEngine, Serving

_HEADER_COST = 32
"""What a header counts for beside its bytes, as in RFC 9113 §6.5.2: many tiny ones cost memory too."""
_REQUEST_ID = re.compile(rb"[\x21-\x7e]+")


def make_app(llm: AsyncEngine, config: ServerConfig, limits: Limits = DEFAULT_LIMITS) -> Starlette:
    """The ASGI application over `llm`. The caller starts and closes `llm`; until it is ready the answer is 503."""
    app = Starlette(
        routes=[
            Route("/v1/models", service.list_models, methods=["GET"]),
            Route("/v1/models/{model:path}", service.get_model, methods=["GET"]),
            Route("/v1/completions", completions, methods=["POST"]),
            Route("/v1/chat/completions", chat_completions, methods=["POST"]),
            Route("/tokenize", service.tokenize, methods=["POST"]),
            Route("/detokenize", service.detokenize, methods=["POST"]),
            Route("/health", service.health, methods=["GET"]),
            Route("/version", service.version, methods=["GET"]),
            Route("/metrics", service.metrics, methods=["GET"]),
            Route("/v1/engine/memory", service.memory, methods=["GET"]),
            Route("/v1/engine/startup", service.startup, methods=["GET"]),
            Route("/openapi.json", openapi_document, methods=["GET"]),
            Route("/docs", docs_page, methods=["GET"]),
        ],
        middleware=[Middleware(RequestScope, limits=limits)],
        exception_handlers={HeadraceError: on_headrace_error, HTTPException: on_http_error},
    )
    app.router.redirect_slashes = False
    names = llm.engine_config.served_model_name or (llm.model_name,)
    app.state.serving = Serving(llm=llm, config=config, names=names, metrics=Metrics(names[0]), limits=limits)
    return app


class RequestScope:
    """Gives every request an id (the client's `X-Request-Id` or a new one) and keeps its faults to itself."""

    def __init__(self, app: ASGIApp, limits: Limits) -> None:
        self._app = app
        self._limits = limits

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        request_id = self._request_id(scope)
        scope.setdefault("state", {})["request_id"] = request_id.decode()
        started = False

        async def send_with_id(message: Message) -> None:
            nonlocal started
            if message["type"] == "http.response.start":
                started = True
                message = {**message, "headers": [*message["headers"], (b"x-request-id", request_id)]}
            await send(message)

        try:
            if (
                sum(len(name) + len(value) + _HEADER_COST for name, value in scope["headers"])
                > self._limits.max_header_bytes
            ):
                raise HeadersTooLargeError(
                    f"the request's headers are longer than {self._limits.max_header_bytes} bytes"
                )
            await self._app(scope, receive, send_with_id)
        except HeadraceError as error:
            await error_response(error)(scope, receive, send_with_id)
        except Exception as error:
            log_fault(error, request_id.decode())
            if not started:
                await error_response(error)(scope, receive, send_with_id)

    def _request_id(self, scope: Scope) -> bytes:
        for name, value in scope["headers"]:
            if (
                name == b"x-request-id"
                and len(value) <= self._limits.max_request_id_chars
                and _REQUEST_ID.fullmatch(value)
            ):
                return bytes(value)
        return uuid.uuid4().hex.encode()
