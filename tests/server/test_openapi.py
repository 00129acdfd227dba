"""The OpenAPI document and the page that shows it."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

from headrace.server import make_app
from headrace.server.openapi.document import OPERATIONS, build_document
from tests.server.support.client import Client
from tests.server.support.fakes import FakeLLM


def references(value: Any) -> Iterator[str]:
    if isinstance(value, dict):
        if "$ref" in value:
            yield value["$ref"]
        for inner in value.values():
            yield from references(inner)
    elif isinstance(value, list):
        for inner in value:
            yield from references(inner)


def test_every_route_is_documented_and_the_other_way_round() -> None:
    client = Client()
    routed = {
        (method.lower(), re.sub(r":path}", "}", route.path))
        for route in client.app.routes
        for method in route.methods - {"HEAD"}
    }
    documented = {(operation.method, operation.path) for operation in OPERATIONS}
    assert routed - documented == {("get", "/openapi.json"), ("get", "/docs")} and documented <= routed


def test_every_reference_has_a_target() -> None:
    document = build_document()
    targets = {f"#/components/schemas/{name}" for name in document["components"]["schemas"]}
    found = set(references(document))
    assert found and found <= targets


def test_the_document_is_json_and_knows_where_a_proxy_mounts_it() -> None:
    assert Client().get("/openapi.json").json["openapi"] == "3.1.0"
    assert Client(root_path="/llm").get("/openapi.json").json["servers"] == [{"url": "/llm"}]


def test_every_request_schema_refuses_unknown_fields() -> None:
    schemas = build_document()["components"]["schemas"]
    for operation in OPERATIONS:
        if operation.request is not None:
            assert schemas[operation.request.__name__]["additionalProperties"] is False


def test_every_example_works() -> None:
    client = Client()
    for operation in OPERATIONS:
        if operation.example is not None:
            assert client.post(operation.path, operation.example).status == 200, operation.path


def test_the_page_fetches_nothing_from_elsewhere() -> None:
    answer = Client().get("/docs")
    page = answer.body.decode()
    assert answer.headers["content-type"].startswith("text/html")
    assert not re.search(r"https?://|//[a-z]+\.[a-z]|@import|<link|<script src|innerHTML", page)
    assert "openapi.json" in page


def test_the_document_is_small_enough_to_read() -> None:
    assert len(json.dumps(build_document())) < 100_000


def test_two_applications_share_nothing() -> None:
    from headrace.config.server import ServerConfig

    first, second = (make_app(FakeLLM(served=(name,)), ServerConfig()) for name in ("a", "b"))
    assert first.state.serving.names != second.state.serving.names
