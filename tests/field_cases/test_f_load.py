"""Field cases F49 and F50: clients that leave."""

from __future__ import annotations

import threading

import httpx

from tests.field_cases.conftest import wait_for
from tests.server.support.real import RealServer

BODY = {"prompt": "x", "max_tokens": 2000, "ignore_eos": True, "temperature": 0}


def is_idle(server: RealServer) -> bool:
    return server.metric("headrace:num_requests_running") + server.metric("headrace:num_requests_waiting") == 0


def test_f49_disconnect_while_streaming(server: RealServer) -> None:
    for _ in range(60):
        with server.client.stream("POST", server.url + "/v1/completions", json=BODY | {"stream": True}) as response:
            lines = (line for line in response.iter_lines() if line.startswith("data: "))
            assert next(lines) and next(lines)
    wait_for(lambda: is_idle(server), "nothing runs any more", 2.0)
    assert server.metric("headrace:request_success_total") > 0


def test_f50_disconnect_while_waiting_for_a_whole_answer(server: RealServer) -> None:
    aborted_before = aborted(server)

    def leave() -> None:
        with httpx.Client(timeout=0.02) as client:
            try:
                client.post(server.url + "/v1/completions", json=BODY | {"n": 4})
            except httpx.TimeoutException:
                return

    threads = [threading.Thread(target=leave) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    wait_for(lambda: is_idle(server), "nothing runs any more", 2.0)
    wait_for(lambda: aborted(server) > aborted_before, "completions were counted as aborted")


def aborted(server: RealServer) -> float:
    lines = server.get("/metrics").text.splitlines()
    return sum(
        float(line.split()[-1])
        for line in lines
        if line.startswith("headrace:request_success_total") and 'finished_reason="abort"' in line
    )
