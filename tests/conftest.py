"""Fixtures every part may use: tiny random models, written once per session, and the demo model when it can be had."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.fixtures.tiny_models import SPECS, write_gguf, write_hf


@pytest.fixture(scope="session")
def tiny_hf(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Path]:
    """`tiny_hf(name, dtype="f32") -> Path`: the folder of a tiny model; names in `tests.fixtures.tiny_models.SPECS`."""
    made: dict[tuple[str, str], Path] = {}

    def make(name: str = "llama", dtype: str = "f32") -> Path:
        if (name, dtype) not in made:
            folder = tmp_path_factory.mktemp("tiny-hf", numbered=True) / f"{name}-{dtype}"
            made[name, dtype] = write_hf(SPECS[name], folder, dtype)
        return made[name, dtype]

    return make


@pytest.fixture(scope="session")
def tiny_gguf(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Path]:
    """`tiny_gguf(name, tensor_type="Q4_1") -> Path`: a tiny model as a GGUF file."""
    made: dict[tuple[str, str], Path] = {}

    def make(name: str = "llama", tensor_type: str = "Q4_1") -> Path:
        if (name, tensor_type) not in made:
            file = tmp_path_factory.mktemp("tiny-gguf", numbered=True) / f"{name}.{tensor_type}.gguf"
            made[name, tensor_type] = write_gguf(SPECS[name], file, tensor_type)
        return made[name, tensor_type]

    return make


@pytest.fixture(scope="session")
def smollm2_path() -> Path:
    """The demo model's file; skips, saying why, when it is neither cached nor downloadable here."""
    from headrace.core.errors import HeadraceError
    from headrace.weights.hub import resolve_model

    try:
        return resolve_model("smollm2")
    except (HeadraceError, OSError) as error:
        pytest.skip(f"the demo model smollm2 cannot be had here: {error}")
