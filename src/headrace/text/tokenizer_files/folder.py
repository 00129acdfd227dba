"""Tokenizer from a Hugging Face folder: tokenizer.json with its configuration files."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from headrace.core.errors import ModelFileError, UnsupportedModelError
from headrace.text.tokenizer import Tokenizer
from headrace.text.vocabulary import SPACE_MARK, Scheme, Vocabulary

if TYPE_CHECKING:
    import tokenizers

_SPECIAL_NAMES = ("bos_token", "eos_token", "unk_token", "pad_token")
_MAX_FILE_BYTES = 256 << 20


def build(folder: Path) -> Tokenizer:
    """See `Tokenizer.from_folder`."""
    backend = _load_backend(folder / "tokenizer.json")
    config = _load_json(folder / "tokenizer_config.json")
    generation = _load_json(folder / "generation_config.json")
    scheme, strips_leading_space = _scheme(backend)

    added_tokens = backend.get_added_tokens_decoder()
    special_tokens = _special_tokens(config)
    named = {i for text in special_tokens.values() if (i := backend.token_to_id(text)) is not None}
    special = frozenset(i for i, token in added_tokens.items() if token.special or i in named)
    size = backend.get_vocab_size(with_added_tokens=True)
    size = max([size, *(i + 1 for i in added_tokens)])

    def encode(text: str, add_special_tokens: bool) -> list[int]:
        ids: list[int] = backend.encode(text, add_special_tokens=add_special_tokens).ids
        return ids

    def id_of(name: str) -> int | None:
        return backend.token_to_id(special_tokens[name]) if name in special_tokens else None

    eos = id_of("eos_token")
    return Tokenizer(
        encode,
        Vocabulary(size, backend.id_to_token, {i: t.content for i, t in added_tokens.items()}, special, scheme),
        bos_token_id=id_of("bos_token"),
        eos_token_ids=[*([] if eos is None else [eos]), *_generation_eos(generation, folder)],
        special_tokens=special_tokens,
        strips_leading_space=strips_leading_space,
    )


def _load_backend(path: Path) -> tokenizers.Tokenizer:
    from tokenizers import Tokenizer as Backend

    text = _read(path)
    if text is None:
        raise UnsupportedModelError(f"{path.parent} has no tokenizer.json; other tokenizer files are not read")
    try:
        backend = Backend.from_str(text)
    except Exception as error:  # the binding raises bare Exception
        raise ModelFileError(f"{path} is no tokenizer: {error}") from error
    backend.no_padding()
    backend.no_truncation()
    return backend


def _scheme(backend: tokenizers.Tokenizer) -> tuple[Scheme, bool]:
    """How tokens spell bytes, from the decoder the file asks for, and whether a leading space is stripped."""
    state: dict[str, Any] = json.loads(backend.decoder.__getstate__()) if backend.decoder is not None else {}
    steps = state.get("decoders", [state])
    kinds = {step.get("type") for step in steps}
    if "ByteLevel" in kinds and kinds <= {"ByteLevel", "Fuse"}:
        return "byte_level", False
    if "ByteFallback" in kinds and kinds <= {"Replace", "ByteFallback", "Fuse", "Strip"}:
        replaces = [s for s in steps if s["type"] == "Replace"]
        strips = [s for s in steps if s["type"] == "Strip"]
        usual = all(s["pattern"] == {"String": SPACE_MARK} and s["content"] == " " for s in replaces)
        usual = usual and all(s["content"] == " " and s["start"] <= 1 and s["stop"] == 0 for s in strips)
        if usual and len(strips) <= 1:
            return "sentencepiece", any(s["start"] == 1 for s in strips)
    raise UnsupportedModelError(
        f"tokenizer.json: unknown decoder {json.dumps(state) if state else 'none'}; known: ByteLevel, "
        "and Replace/ByteFallback/Fuse/Strip"
    )


def _special_tokens(config: dict[str, Any]) -> dict[str, str]:
    found: dict[str, str] = {}
    for name in _SPECIAL_NAMES:
        value = config.get(name)
        text = value.get("content") if isinstance(value, dict) else value
        if isinstance(text, str):
            found[name] = text
    return found


def _generation_eos(generation: dict[str, Any], folder: Path) -> list[int]:
    value = generation.get("eos_token_id")
    ids = value if isinstance(value, list) else [] if value is None else [value]
    for i in ids:
        if not isinstance(i, int) or isinstance(i, bool) or i < 0:
            raise ModelFileError(f"{folder / 'generation_config.json'}: eos_token_id must be token ids, got {value!r}")
    return ids


def _load_json(path: Path) -> dict[str, Any]:
    """The object in an optional file; empty when there is none."""
    text = _read(path)
    if text is None:
        return {}
    try:
        value = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ModelFileError(f"{path} is no JSON: {error}") from error
    if not isinstance(value, dict):
        raise ModelFileError(f"{path} must hold a JSON object")
    return value


def _read(path: Path) -> str | None:
    try:
        if path.stat().st_size > _MAX_FILE_BYTES:
            raise ModelFileError(f"{path} is larger than {_MAX_FILE_BYTES} bytes")
        return path.read_text(encoding="utf-8")
    except FileNotFoundError:
        return None
    except (OSError, UnicodeDecodeError) as error:
        raise ModelFileError(f"{path} cannot be read: {error}") from error
