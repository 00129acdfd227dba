"""Fixtures of the executor tests."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.native.toy_plan import ToyModel


@pytest.fixture
def model() -> Iterator[ToyModel]:
    toy = ToyModel(num_threads=2)
    yield toy
    toy.executor.close()
