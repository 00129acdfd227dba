"""Addresses, the banner, and HTTP that never reaches the application."""

from __future__ import annotations

import asyncio
import json
import shlex
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from headrace.config.server import ServerConfig
from headrace.core.errors import ConfigError
from headrace.server import make_app
from headrace.server.launch import banner
from headrace.server.launch.address import listen, release, url
from headrace.server.launch.web import make_server
from tests.server.support.fakes import FakeLLM, engine_info


@contextmanager
def served(root_path: str = "") -> Iterator[int]:
    """The port of a server on its own thread and loop, without an engine process."""
    config = ServerConfig(port=0, root_path=root_path)
    sock = listen(config)
    server = make_server(make_app(FakeLLM(), config), root_path, 1)

    def run() -> None:
        asyncio.run(server.serve(sockets=[sock]))

    thread = threading.Thread(target=run)
    thread.start()
    try:
        yield sock.getsockname()[1]
    finally:
        server.should_exit = True
        thread.join(10)
        release(sock, config)


def exchange(port: int, *parts: bytes) -> tuple[int, bytes]:
    """Send raw bytes and read until the server closes or says nothing more; (status, body)."""
    with socket.create_connection(("127.0.0.1", port), timeout=5) as sock:
        try:
            for part in parts:
                sock.sendall(part)
        except OSError:
            pass  # the server may close while we still send: its answer is what counts
        received = b""
        sock.settimeout(1)
        try:
            while chunk := sock.recv(65536):
                received += chunk
        except OSError:
            pass
    head, _, body = received.partition(b"\r\n\r\n")
    return int(head.split()[1]), body


def test_a_used_port_is_refused_with_advice() -> None:
    first = listen(ServerConfig(port=0))
    port = first.getsockname()[1]
    with pytest.raises(ConfigError, match=f"port {port} .* --port"):
        listen(ServerConfig(port=port))
    first.close()
    listen(ServerConfig(port=port)).close()


def test_a_host_that_is_not_ours_is_refused() -> None:
    for host in ("203.0.113.7", "no such host"):
        with pytest.raises(ConfigError, match=r"203\.0\.113\.7|no such host"):
            listen(ServerConfig(host=host, port=0))


def test_a_stale_unix_socket_is_replaced_and_a_live_one_is_not(tmp_path: Path) -> None:
    path = str(tmp_path / "s")
    config = ServerConfig(uds=path)
    live = listen(config)
    with pytest.raises(ConfigError, match="another server"):
        listen(config)
    live.close()
    again = listen(config)
    release(again, config)
    assert not Path(path).exists()
    Path(path).write_text("precious")
    with pytest.raises(ConfigError, match="no socket"):
        listen(config)
    assert Path(path).read_text() == "precious"


def test_the_url_is_one_that_works_from_here() -> None:
    for host in ("127.0.0.1", "0.0.0.0"):
        config = ServerConfig(host=host, port=0)
        sock = listen(config)
        assert url(sock, config) == f"http://127.0.0.1:{sock.getsockname()[1]}"
        sock.close()


def test_the_banner_has_the_memory_table_and_a_curl_to_paste() -> None:
    config = ServerConfig(port=0)
    sock = listen(config)
    text = banner.text(engine_info(512), "it's", sock, config)
    sock.close()
    assert "weights" in text and "packed" in text and "512 tokens of context" in text
    command = shlex.split(next(line for line in text.splitlines() if "curl" in line))
    assert json.loads(command[-1])["model"] == "it's"
    assert command[2] == url_of(command) + "/v1/chat/completions"


def url_of(command: list[str]) -> str:
    return command[2].removesuffix("/v1/chat/completions")


def test_over_a_unix_socket_the_curl_says_so(tmp_path: Path) -> None:
    assert f"--unix-socket {tmp_path}/s http://localhost/" in banner.curl("http://localhost", "m", f"{tmp_path}/s")


def test_headers_too_long_are_431_with_an_error_body() -> None:
    with served() as port:
        head = b"GET /health HTTP/1.1\r\nhost: x\r\nx-long: "
        status, body = exchange(port, head + b"a" * (1 << 20) + b"\r\n\r\n")
        assert status == 431 and "headers" in json.loads(body)["error"]["message"]
        many = b"".join(b"x-%d: y\r\n" % i for i in range(10_000))
        assert exchange(port, b"GET /health HTTP/1.1\r\nhost: x\r\n" + many + b"\r\n")[0] == 431
        assert exchange(port, b"GET /health HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n")[0] == 200


def test_what_is_no_http_is_400_with_an_error_body() -> None:
    with served() as port:
        status, body = exchange(port, b"nonsense\r\n\r\n")
        assert status == 400 and json.loads(body)["error"]["code"] == "invalid_http"


def test_an_endless_body_is_413_before_its_end() -> None:
    head = (
        b"POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\n"
        b"transfer-encoding: chunked\r\n\r\n"
    )
    chunk = b"100000\r\n" + b" " * 0x100000 + b"\r\n"
    with served() as port:
        status, body = exchange(port, head, *[chunk] * 20)
        assert status == 413 and b"bytes" in body
        declared = head.replace(b"transfer-encoding: chunked", b"content-length: 1000000000")
        assert exchange(port, declared)[0] == 413


def test_a_mounted_server_answers_under_its_prefix() -> None:
    with served("/llm") as port:
        assert exchange(port, b"GET /health HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n")[0] == 200


def test_the_server_imports_neither_numpy_nor_a_tensor_library() -> None:
    code = (
        "import sys, headrace.server.app, headrace.server.launch.web, headrace.server.launch.serve; print(*sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    loaded = set(done.stdout.split())
    assert "headrace.server.app" in loaded
    assert not loaded & {"numpy", "torch", "pydantic", "fastapi", "jinja2", "tokenizers", "prometheus_client"}


def test_importing_the_package_imports_no_web_stack() -> None:
    code = "import sys, headrace.server; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert not set(done.stdout.split()) & {"starlette", "uvicorn", "h11", "anyio"}
