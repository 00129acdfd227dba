"""Starting and stopping real server processes."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import httpx
import pytest

from tests.server.support.real import COMMAND, RealServer, write_model


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_model(tmp_path_factory.mktemp("process") / "llama")


def is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"


def wait_for(condition: Callable[[], bool], what: str, timeout_s: float = 5.0) -> None:
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline, f"waited {timeout_s} s in vain: {what}"
        time.sleep(0.01)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_server_and_engine_with_status_0(model: Path, number: signal.Signals) -> None:
    with RealServer(model) as server:
        engine_pid = server.engine_pid
        server.signal(number)
        assert server.process.wait(15) == 0
        assert not is_alive(engine_pid)
        assert "Traceback" not in server.errors()


def test_running_streams_finish_after_sigterm(model: Path) -> None:
    with RealServer(model, "--shutdown-timeout", "20") as server:
        body = {"prompt": "x", "max_tokens": 1900, "ignore_eos": True, "stream": True, "temperature": 0}
        with server.client.stream("POST", server.url + "/v1/completions", json=body) as response:
            lines = response.iter_lines()
            next(lines)
            server.signal(signal.SIGTERM)
            assert "data: [DONE]" in list(lines)
        assert server.process.wait(20) == 0


def test_a_second_signal_does_not_wait_for_streams(model: Path) -> None:
    with RealServer(model, "--shutdown-timeout", "60", "--max-num-batched-tokens", "1") as server:
        body = {"prompt": [5] * 1500, "n": 64, "max_tokens": 400, "ignore_eos": True, "stream": True}
        with server.client.stream("POST", server.url + "/v1/completions", json=body):
            server.signal(signal.SIGTERM)
            time.sleep(0.3)
            assert server.process.poll() is None
            server.signal(signal.SIGTERM)
            assert server.process.wait(10) == 0


def test_killing_the_server_ends_the_engine(model: Path) -> None:
    with RealServer(model) as server:
        engine_pid = server.engine_pid
        server.process.kill()
        server.process.wait()
        wait_for(lambda: not is_alive(engine_pid), "the engine has ended")


def test_a_used_port_fails_before_a_model_is_loaded(model: Path) -> None:
    with RealServer(model) as server:
        port = server.url.rsplit(":", 1)[1]
        started = time.monotonic()
        second = subprocess.run([*COMMAND, str(model), "--port", port], capture_output=True, text=True, timeout=30)
        assert second.returncode != 0 and f"port {port}" in second.stderr and "Traceback" not in second.stderr
        assert time.monotonic() - started < 10
        assert server.get("/health").status_code == 200


def test_a_model_that_cannot_be_loaded_is_an_error_and_not_a_server(tmp_path: Path) -> None:
    broken = write_model(tmp_path / "broken")
    (broken / "model.safetensors").write_bytes(b"\xff" * 100)
    done = subprocess.run([*COMMAND, str(broken), "--port", "0"], capture_output=True, text=True, timeout=60)
    assert done.returncode == 1 and "error:" in done.stderr and "is served at" not in done.stdout
    assert "Traceback" not in done.stderr


def test_it_listens_on_a_unix_socket_and_removes_it(model: Path, tmp_path: Path) -> None:
    path = tmp_path / "socket"
    with RealServer(model, "--uds", str(path)) as server:
        transport = httpx.HTTPTransport(uds=str(path))
        with httpx.Client(transport=transport) as client:
            assert client.get("http://localhost/health").json() == {"status": "ready"}
        assert f"--unix-socket {path}" in server.banner
        server.signal(signal.SIGTERM)
        assert server.process.wait(15) == 0
    assert not path.exists()


def test_the_printed_curl_works(model: Path) -> None:
    import json
    import shlex

    with RealServer(model) as server:
        command = shlex.split(next(line for line in server.banner.splitlines() if "curl" in line))
        answer = server.client.post(command[2], content=command[-1], headers={"content-type": "application/json"})
        assert answer.status_code == 200 and answer.json()["model"] == json.loads(command[-1])["model"] == "tiny"
