"""One server for all field cases, and the three invariants that must hold after each of them."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.server.support.real import RealServer, write_model

RSS_GROWTH_BYTES = 64 << 20
"""What one case may leave behind in server and engine together, caches and allocator included."""


@pytest.fixture(scope="session")
def model_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_model(tmp_path_factory.mktemp("field-cases") / "llama")


@pytest.fixture(scope="session")
def shared_server(model_folder: Path) -> Iterator[RealServer]:
    with RealServer(model_folder) as server:
        server.complete(prompt="warm up")
        yield server


@pytest.fixture
def server(shared_server: RealServer) -> Iterator[RealServer]:
    """The shared server; fails the case if it leaves it unhealthy, with blocks taken, or grown."""
    free, rss = shared_server.num_free_blocks, shared_server.rss_bytes
    yield shared_server
    assert shared_server.get("/health").status_code == 200
    answer = shared_server.complete(prompt="The invariant", ignore_eos=True)
    assert answer.status_code == 200 and answer.json()["usage"]["completion_tokens"] == 4
    wait_for(lambda: shared_server.num_free_blocks == free, "all KV blocks are free again")
    assert shared_server.rss_bytes < rss + RSS_GROWTH_BYTES


def wait_for(condition: Callable[[], bool], what: str, timeout_s: float = 5.0) -> None:
    """Poll `condition()` until it is true."""
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline, f"waited {timeout_s} s in vain: {what}"
        time.sleep(0.01)
