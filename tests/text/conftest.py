"""Tokenizers the text tests share."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from headrace.text.tokenizer import Tokenizer
from tests.text.tiny_sentencepiece import sentencepiece_metadata


@pytest.fixture(scope="session")
def smollm2_metadata(smollm2_path: Path) -> dict[str, Any]:
    from headrace.weights.gguf import GGUFFile

    return dict(GGUFFile(smollm2_path).metadata)


@pytest.fixture(scope="session")
def smollm2(smollm2_metadata: dict[str, Any]) -> Tokenizer:
    return Tokenizer.from_gguf(smollm2_metadata)


@pytest.fixture(scope="session")
def sentencepiece() -> Tokenizer:
    """A tiny byte-fallback tokenizer."""
    return Tokenizer.from_gguf(sentencepiece_metadata())


@pytest.fixture(scope="session")
def llama_cpp_models() -> Path:
    """`vendor/llama.cpp/models` of an unpacked llama-cpp-python sdist: real vocabularies and templates.

    They belong to their vendors, so they are not in this repository.
    """
    folder = os.environ.get("HEADRACE_LLAMA_CPP_MODELS")
    if not folder:
        pytest.skip("HEADRACE_LLAMA_CPP_MODELS does not name the models folder of a llama-cpp-python sdist")
    return Path(folder)
