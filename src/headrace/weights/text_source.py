"""What of a model on disk concerns text: the source of its tokenizer and its chat template. No weights, no NumPy."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec

from headrace.core.errors import ModelFileError
from headrace.weights.files import read_json
from headrace.weights.gguf_parts import open_parts


class TextSource(msgspec.Struct, frozen=True):
    """Where a tokenizer is built from, and how conversations are written."""

    tokenizer_source: Mapping[str, Any] | Path
    """GGUF metadata, or the folder that holds tokenizer.json."""
    chat_template: str | None


def open_text_source(path: Path) -> TextSource:
    """Of a GGUF file or a folder in Hugging Face layout. Raises ModelFileError, UnsupportedModelError."""
    if path.is_dir():
        return TextSource(path, folder_chat_template(path))
    metadata = open_parts(path)[0].metadata
    return TextSource(metadata, gguf_chat_template(metadata))


def gguf_chat_template(metadata: Mapping[str, Any]) -> str | None:
    """The template in a GGUF file's metadata."""
    template = metadata.get("tokenizer.chat_template")
    return template if isinstance(template, str) else None


def folder_chat_template(folder: Path) -> str | None:
    """chat_template.jinja, else the one in tokenizer_config.json (the one named `default` where there are several)."""
    file = folder / "chat_template.jinja"
    if file.exists():
        try:
            return file.read_text(encoding="utf-8")
        except (OSError, ValueError) as error:
            raise ModelFileError(f"{file}: cannot be read: {error}") from error
    config_path = folder / "tokenizer_config.json"
    template = read_json(config_path).get("chat_template") if config_path.exists() else None
    if isinstance(template, list):
        named = {t.get("name"): t.get("template") for t in template if isinstance(t, dict)}
        template = named.get("default")
    return template if isinstance(template, str) else None
