"""A real server for the official client."""

from __future__ import annotations

from collections.abc import Iterator

import openai
import pytest

from tests.server.support.real import RealServer, write_model


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RealServer]:
    with RealServer(write_model(tmp_path_factory.mktemp("conformance") / "llama")) as started:
        yield started


@pytest.fixture
def client(server: RealServer) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=server.url + "/v1", api_key="unused", max_retries=0, timeout=60) as made:
        yield made
