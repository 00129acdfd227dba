"""Field cases F60–F64, F72 and F75: hostile input, against a real server."""

from __future__ import annotations

import json
import socket
import time
from typing import Any
from urllib.parse import urlsplit

import httpx
import pytest

from tests.server.support.real import RealServer


def post_bytes(server: RealServer, body: bytes) -> httpx.Response:
    headers = {"content-type": "application/json"}
    return server.client.post(server.url + "/v1/completions", content=body, headers=headers)


@pytest.mark.parametrize("field", ["n", "best_of"])
def test_f60_huge_n(server: RealServer, field: str) -> None:
    server.complete(prompt="x")
    start = time.perf_counter()
    answer = server.complete(**{"prompt": "x", field: 100_000_000, "max_tokens": 1})
    assert answer.status_code == 400 and answer.json()["error"]["param"] == field
    assert time.perf_counter() - start < 0.5


def test_f61_a_million_prompts(server: RealServer) -> None:
    answer = server.complete(prompt=["x"] * 1_000_000)
    assert answer.status_code in (400, 413) and answer.json()["error"]["message"]


@pytest.mark.parametrize("fields", [{"logprobs": -1}, {"logprobs": 10**9}, {"prompt_logprobs": -1}, {"logprobs": 21}])
def test_f62_absurd_logprobs(server: RealServer, fields: dict[str, Any]) -> None:
    assert server.complete(prompt=[5] * 2000, **fields).status_code == 400
    assert server.chat(logprobs=True, top_logprobs=10**9).status_code == 400


def test_f62_the_largest_scoring_request_is_bounded(server: RealServer) -> None:
    answer = server.complete(prompt=[5] * 2047, echo=True, logprobs=20, max_tokens=1)
    assert answer.status_code == 200
    assert len(answer.json()["choices"][0]["logprobs"]["top_logprobs"]) == 2048


def raw(server: RealServer, *parts: bytes) -> bytes:
    """Send bytes as they are; what comes back before the connection ends or falls silent."""
    port = urlsplit(server.url).port
    with socket.create_connection(("127.0.0.1", port), timeout=5) as sock:
        received = b""
        try:
            for part in parts:
                sock.sendall(part)
            sock.settimeout(2)
            while chunk := sock.recv(65536):
                received += chunk
        except OSError:
            pass
    return received


@pytest.mark.parametrize(
    "headers", [b"x-a: " + b"a" * (1 << 20) + b"\r\n", b"".join(b"x-%d: b\r\n" % i for i in range(10_000))]
)
def test_f63_huge_headers(server: RealServer, headers: bytes) -> None:
    head, _, body = raw(server, b"GET /health HTTP/1.1\r\nhost: x\r\n", headers, b"\r\n").partition(b"\r\n\r\n")
    assert head.split()[1] == b"431" and json.loads(body)["error"]["message"]


def test_f63_an_endless_body(server: RealServer) -> None:
    head = (
        b"POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\n"
        b"transfer-encoding: chunked\r\n\r\n"
    )
    rss = server.rss_bytes
    answer = raw(server, head, *[b"100000\r\n" + b" " * 0x100000 + b"\r\n"] * 40)
    assert answer.split()[1] == b"413" and server.rss_bytes < rss + (64 << 20)
    declared = head.replace(b"transfer-encoding: chunked", b"content-length: 1073741824")
    assert raw(server, declared).split()[1] == b"413"


@pytest.mark.parametrize(
    "body",
    [
        b'{"prompt":' + b"[" * 100_000,
        b'{"prompt":"x","response_format":' + b'{"a":' * 100_000 + b"1" + b"}" * 100_001,
        b'{"prompt":"x","' + b"k" * (10 << 20) + b'":1}',
        b'{"prompt":"x","metadata":{"' + b"k" * (10 << 20) + b'":"v"}}',
        b'{"prompt":"x","prompt":"y"}',
        b'{"prompt":"x","temperature":NaN}',
        b'{"prompt":"x","temperature":-Infinity}',
        b'{"prompt":"x","temperature":1e400}',
        b'{"prompt":"x","seed":' + b"9" * 100_000 + b"}",
    ],
    ids=["depth", "objects", "key", "inner key", "duplicate", "nan", "infinity", "1e400", "digits"],
)
def test_f64_json_bombs(server: RealServer, body: bytes) -> None:
    start = time.perf_counter()
    answer = post_bytes(server, body)
    assert answer.status_code == 400 and len(answer.content) < 2000
    assert time.perf_counter() - start < 3


@pytest.mark.parametrize(
    "field", ["kv_transfer_params", "bootstrap_host", "mm_hashes", "data_parallel_rank", "n_discard"]
)
def test_f72_internal_fields_from_outside(server: RealServer, field: str) -> None:
    error = server.complete(**{"prompt": "x", field: -1}).json()["error"]
    assert error["code"] == "unknown_field" and error["param"] == field


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("logit_bias", {"-1": 1}),
        ("logit_bias", {"300": 1}),
        ("logit_bias", {"a": 1}),
        ("logit_bias", {str(i): 1 for i in range(100_000)}),
        ("seed", 1 << 63),
        ("seed", -1),
        ("temperature", -1),
        ("temperature", 1e30),
        ("top_p", 0),
        ("top_p", 2),
        ("frequency_penalty", 100),
        ("presence_penalty", -100),
        ("min_tokens", 10),
    ],
)
def test_f75_values_out_of_range(server: RealServer, field: str, value: object) -> None:
    for answer in (server.complete(prompt="x", **{field: value}), server.chat(**{field: value})):
        assert answer.status_code == 400 and answer.json()["error"]["param"] == field
