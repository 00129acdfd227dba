"""The OpenAPI document and the page that shows it."""

from __future__ import annotations

from importlib import resources
from typing import Any, NamedTuple

import msgspec
from starlette.requests import Request
from starlette.responses import HTMLResponse, Response

import headrace
from headrace.server.errors import ErrorBody, json_response
from headrace.server.schemas import chat, completions, service
from headrace.server.serving import serving_of


class Operation(NamedTuple):
    """One endpoint, as documented."""

    method: str
    path: str
    summary: str
    request: type | None
    response: type | str
    """A schema, or the media type of something that is no JSON."""
    chunk: type | None = None
    example: dict[str, Any] | None = None


OPERATIONS = (
    Operation(
        "post",
        "/v1/chat/completions",
        "Answer a conversation",
        chat.ChatCompletionRequest,
        chat.ChatCompletionResponse,
        chat.ChatCompletionChunk,
        {"messages": [{"role": "user", "content": "What is a headrace?"}], "max_tokens": 64},
    ),
    Operation(
        "post",
        "/v1/completions",
        "Continue one text or several",
        completions.CompletionRequest,
        completions.CompletionResponse,
        completions.CompletionResponse,
        {"prompt": "The capital of France is", "max_tokens": 8, "temperature": 0},
    ),
    Operation("get", "/v1/models", "The served models", None, service.ModelList),
    Operation("get", "/v1/models/{model}", "One served model", None, service.ModelCard),
    Operation(
        "post",
        "/tokenize",
        "Text or messages as token ids",
        service.TokenizeRequest,
        service.TokenizeResponse,
        None,
        {"prompt": "Hello world", "return_token_strs": True},
    ),
    Operation(
        "post",
        "/detokenize",
        "Token ids as text",
        service.DetokenizeRequest,
        service.DetokenizeResponse,
        None,
        {"tokens": [1, 2, 3]},
    ),
    Operation("get", "/health", "200 when requests are answered, 503 otherwise", None, service.Health),
    Operation("get", "/version", "The version of headrace", None, service.Version),
    Operation("get", "/metrics", "Metrics for Prometheus", None, "text/plain"),
    Operation("get", "/v1/engine/memory", "The engine's memory table", None, service.MemoryTable),
    Operation("get", "/v1/engine/startup", "Where the start-up went", None, service.Startup),
)

_ERRORS = {
    "400": "Something in the request is wrong; `param` names it",
    "404": "No such model",
    "413": "The body is too long",
    "415": "The body is not declared to be JSON",
    "503": "The engine is starting, or gone",
}


async def openapi_document(request: Request) -> Response:
    """`GET /openapi.json`."""
    return json_response(build_document(serving_of(request).config.root_path))


async def docs_page(request: Request) -> Response:  # noqa: ARG001
    """`GET /docs`."""
    page = resources.files("headrace.server.openapi").joinpath("page.html").read_text("utf-8")
    return HTMLResponse(page)


def build_document(root_path: str = "") -> dict[str, Any]:
    """The OpenAPI 3.1 document as builtins; `root_path` is where a proxy mounts the API."""
    kinds: list[Any] = [ErrorBody]
    for operation in OPERATIONS:
        named = (operation.request, operation.response, operation.chunk)
        kinds += [kind for kind in named if isinstance(kind, type) and kind not in kinds]
    schemas, components = msgspec.json.schema_components(kinds, ref_template="#/components/schemas/{name}")
    reference = dict(zip(kinds, schemas, strict=True))
    paths: dict[str, Any] = {}
    for operation in OPERATIONS:
        paths.setdefault(operation.path, {})[operation.method] = _operation(operation, reference)
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "headrace",
            "version": headrace.__version__,
            "description": "OpenAI-compatible inference server. Unknown fields are refused; null means left out.",
        },
        "servers": [{"url": root_path or "/"}],
        "paths": paths,
        "components": {"schemas": components},
    }


def _operation(operation: Operation, reference: dict[Any, Any]) -> dict[str, Any]:
    content: dict[str, Any]
    if isinstance(operation.response, str):
        content = {operation.response: {"schema": {"type": "string"}}}
    else:
        content = {"application/json": {"schema": reference[operation.response]}}
    if operation.chunk is not None:
        content["text/event-stream"] = {"schema": reference[operation.chunk]}
    document: dict[str, Any] = {
        "summary": operation.summary,
        "operationId": operation.method + operation.path.replace("/", "_").replace("{", "").replace("}", ""),
        "responses": {"200": {"description": "OK", "content": content}},
    }
    if "{model}" in operation.path:
        document["parameters"] = [{"name": "model", "in": "path", "required": True, "schema": {"type": "string"}}]
    errors = {"application/json": {"schema": reference[ErrorBody]}}
    relevant = _ERRORS if operation.request is not None else {"404": _ERRORS["404"], "503": _ERRORS["503"]}
    for status, meaning in relevant.items():
        document["responses"][status] = {"description": meaning, "content": errors}
    if operation.request is not None:
        body: dict[str, Any] = {"schema": reference[operation.request]}
        if operation.example is not None:
            body["example"] = operation.example
        document["requestBody"] = {"required": True, "content": {"application/json": body}}
    return document
