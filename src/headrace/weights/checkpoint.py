"""Checkpoint: one model on disk (GGUF file or Hugging Face folder) under logical weight names, checked and complete."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from headrace.config.model_config import ModelConfig
from headrace.core.errors import ModelFileError, UnsupportedModelError
from headrace.weights.dequantize import dequantize, unsupported_type_message
from headrace.weights.elements import LOADABLE, ElementType
from headrace.weights.files import read_json
from headrace.weights.gguf import GGUFFile, TensorInfo
from headrace.weights.gguf_parts import open_parts
from headrace.weights.names import file_name, is_ignorable, logical_shapes, row_order
from headrace.weights.safetensors import SafetensorsFile, open_folder
from headrace.weights.text_source import folder_chat_template, gguf_chat_template

Style = Literal["hf", "gguf"]
_MAX_NAMES_SHOWN = 6


@dataclass(frozen=True, slots=True)
class TensorRef:
    """One weight where it lies. `raw` [nbytes] uint8 is a view on the mapped file (its address may be odd)."""

    name: str
    """The tensor's name in its file."""
    element_type: ElementType
    shape: tuple[int, ...]
    """(outputs, inputs) or (width,)."""
    raw: npt.NDArray[np.uint8]
    row_order: npt.NDArray[np.int64] | None
    """Logical row r lies at row row_order[r] of `raw`; None: in order. For a bias, the same for its elements."""

    def dequantize(self) -> npt.NDArray[np.float32]:
        """The weight in logical order, float32 [*shape]."""
        values = dequantize(self.element_type, self.raw, self.shape)
        return values if self.row_order is None else values[self.row_order]


class Checkpoint:
    """An opened model, made by `open_checkpoint`: every weight that the configuration asks for is there in its shape.

    A context manager: leaving it unmaps the files, as soon as nobody holds a view of them any more.
    """

    def __init__(
        self,
        path: Path,
        style: Style,
        config: ModelConfig,
        owners: Mapping[str, GGUFFile | SafetensorsFile],
        *,
        tokenizer_source: Mapping[str, Any] | Path,
        chat_template: str | None,
        generation_config: dict[str, Any],
        fingerprint: bytes,
    ) -> None:
        self.path = path
        self.format: Style = style
        self.config = config
        self.tokenizer_source = tokenizer_source
        """GGUF metadata, or the folder that holds tokenizer.json."""
        self.chat_template = chat_template
        self.generation_config = generation_config
        self._owners = owners
        self._fingerprint = fingerprint
        self._shapes = logical_shapes(config)
        self._file_names = _match(path, style, config, owners)

    def __enter__(self) -> Checkpoint:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Unmaps the files. Views handed out stay valid: their file is unmapped when the last of them goes."""
        for owner in {id(o): o for o in self._owners.values()}.values():
            owner.file.close()

    def names(self) -> list[str]:
        """Logical names of all weights, in model order."""
        return list(self._file_names)

    def has(self, logical: str) -> bool:
        """False for `head` when it is tied to `embed`, for biases and norms that the model does not have."""
        return logical in self._file_names

    def tensor(self, logical: str) -> TensorRef:
        """The weight of that logical name. KeyError when the model has none."""
        name = self._file_names[logical]
        owner = self._owners[name]
        info = owner.tensors[name]
        order = row_order(logical, self.format, self.config)
        return TensorRef(name, info.dtype, self._shapes[logical], owner.raw(name), order)

    def drop_pages(self, logical: str) -> None:
        """Gives the weight's file pages back to the system, as when it has been packed elsewhere."""
        name = self._file_names[logical]
        info = self._owners[name].tensors[name]
        self._owners[name].file.drop_pages(info.offset, info.nbytes)

    @property
    def weight_bytes(self) -> int:
        """Bytes of all weights as stored in the file."""
        return sum(self._owners[n].tensors[n].nbytes for n in self._file_names.values())

    @cached_property
    def revision_hash(self) -> str:
        """An id of the contents, 16 hex digits: SHA-256 of headers, sizes and a sample of every tensor.

        Cheap (a page per tensor) and the same on every machine; it tells fine-tunes of one model apart, but it is no
        proof against a forger.
        """
        digest = hashlib.sha256(self._fingerprint)
        for name in sorted(self._owners):
            owner = self._owners[name]
            info = owner.tensors[name]
            middle = info.offset + info.nbytes // 2
            digest.update(f"\n{name} {info.dtype.label} {info.shape}".encode())
            digest.update(owner.file.read(middle, min(256, info.offset + info.nbytes - middle)))
        return digest.hexdigest()[:16]


def open_checkpoint(path: Path) -> Checkpoint:
    """Opens a GGUF file (or the first part of a split one) or a folder in Hugging Face layout.

    Nothing in a folder is ever run or unpickled. Raises ModelFileError for missing, corrupt or mismatched files and
    UnsupportedModelError for architectures, features and weight types without an implementation.
    """
    return _open_folder(path) if path.is_dir() else _open_gguf(path)


def _open_gguf(path: Path) -> Checkpoint:
    parts = open_parts(path)
    owners: dict[str, GGUFFile | SafetensorsFile] = {}
    for part in parts:
        for name in part.tensors:
            if name in owners:
                raise ModelFileError(f"{part.path}: tensor {name!r} is also in {owners[name].path.name}")
            owners[name] = part
    metadata = parts[0].metadata
    factors = None
    if "rope_freqs.weight" in owners:
        info = owners["rope_freqs.weight"].tensors["rope_freqs.weight"]
        _check_type(path, info)
        factors = tuple(dequantize(info.dtype, owners[info.name].raw(info.name), info.shape).reshape(-1).tolist())
    config = ModelConfig.from_gguf(metadata, tensor_names=owners, rope_factors=factors, where=str(path))
    fingerprint = b"".join(hashlib.sha256(p.file.read(0, p.header_bytes)).digest() for p in parts)
    return Checkpoint(
        path,
        "gguf",
        config,
        owners,
        tokenizer_source=metadata,
        chat_template=gguf_chat_template(metadata),
        generation_config={},
        fingerprint=fingerprint,
    )


def _open_folder(folder: Path) -> Checkpoint:
    values = read_json(folder / "config.json")
    generation_path = folder / "generation_config.json"
    generation = read_json(generation_path) if generation_path.exists() else {}
    values = _with_generation_eos(values, generation)
    config = ModelConfig.from_hf(values, where=str(folder / "config.json"))
    owners: dict[str, GGUFFile | SafetensorsFile] = dict(open_folder(folder))
    files = {id(f): f for f in owners.values()}
    digests = sorted(hashlib.sha256(f.file.read(0, f.header_bytes)).digest() for f in files.values())
    return Checkpoint(
        folder,
        "hf",
        config,
        owners,
        tokenizer_source=folder,
        chat_template=folder_chat_template(folder),
        generation_config=generation,
        fingerprint=repr(config).encode() + b"".join(digests),
    )


def _with_generation_eos(values: dict[str, Any], generation: dict[str, Any]) -> dict[str, Any]:
    """config.json with generation_config.json's end-of-sequence ids added: chat models name their end of turn there."""

    def listed(value: Any) -> list[Any]:
        return value if isinstance(value, list) else [] if value is None else [value]

    both = listed(values.get("eos_token_id")) + listed(generation.get("eos_token_id"))
    return values | {"eos_token_id": both}


def _match(
    path: Path, style: Style, config: ModelConfig, owners: Mapping[str, GGUFFile | SafetensorsFile]
) -> dict[str, str]:
    """Logical name → file name, with presence, shape and type of every tensor checked."""
    bare = style == "hf" and "model.embed_tokens.weight" not in owners and "embed_tokens.weight" in owners
    matched: dict[str, str] = {}
    missing: list[str] = []
    for logical, shape in logical_shapes(config).items():
        name = file_name(logical, style)
        name = name.removeprefix("model.") if bare else name
        if name not in owners:
            missing.append(name)
            continue
        info = owners[name].tensors[name]
        if not _same_shape(info.shape, shape):
            raise ModelFileError(
                f"{owners[name].path}: tensor {name!r} has shape {list(info.shape)}, "
                f"the configuration asks for {list(shape)}"
            )
        _check_type(owners[name].path, info)
        matched[logical] = name
    used = set(matched.values())
    strangers = [n for n in owners if n not in used and not is_ignorable(n, style, config)]
    if missing or strangers:
        parts = []
        if missing:
            parts.append(f"missing tensors: {_listing(missing)}")
        if strangers:
            parts.append(
                f"tensors that a {config.architecture} of this configuration does not have: {_listing(strangers)}"
            )
        raise ModelFileError(f"{path}: {'; '.join(parts)}")
    return matched


def _check_type(path: Path, info: TensorInfo) -> None:
    if info.dtype not in LOADABLE:
        raise UnsupportedModelError(f"{path}: tensor {info.name!r}: {unsupported_type_message(info.dtype)}")


def _same_shape(found: tuple[int, ...], wanted: tuple[int, ...]) -> bool:
    """Equal but for leading axes of one: writers disagree on whether a vector is [n] or [1, n]."""
    extra = len(found) - len(wanted)
    return extra >= 0 and found[extra:] == wanted and all(n == 1 for n in found[:extra])


def _listing(names: list[str]) -> str:
    more = len(names) - _MAX_NAMES_SHOWN
    return ", ".join(names[:_MAX_NAMES_SHOWN]) + (f" and {more} more" if more > 0 else "")
