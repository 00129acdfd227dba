"""A bounds-checked reader for safetensors files and sharded folders of them.

Format: the safetensors README of Hugging Face: u64 header length, a JSON header, then the data. Every length and offset
is checked against the file before it is used.
"""

from __future__ import annotations

import re
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING, Any

from headrace.core.errors import ModelFileError, UnsupportedModelError
from headrace.weights.elements import SAFETENSORS_TYPES
from headrace.weights.files import PICKLE_SUFFIXES, MappedFile, open_model_file, parse_json_object, read_json
from headrace.weights.gguf import TensorInfo

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

MAX_HEADER_BYTES = 100_000_000  # the reference implementation's limit
MAX_DIMS = 8
INDEX_NAME = "model.safetensors.index.json"
SINGLE_NAME = "model.safetensors"


class SafetensorsFile:
    """One safetensors file: `tensors` by name, `metadata` (str → str).

    Raises ModelFileError naming the tensor when the file is corrupt or truncated, UnsupportedModelError for dtypes
    that are not known here.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.file: MappedFile = open_model_file(path)
        length = int.from_bytes(self.file.read(0, 8), "little")
        if length > min(MAX_HEADER_BYTES, self.file.size_bytes - 8):
            raise ModelFileError(f"{path}: header: claims {length} bytes, the file has {self.file.size_bytes}")
        self.header_bytes: int = 8 + length
        header = parse_json_object(self.file.read(8, length), f"{path}: header")
        metadata = header.pop("__metadata__", {})
        self.metadata: dict[str, str] = metadata if isinstance(metadata, dict) else {}
        self.tensors: dict[str, TensorInfo] = {}
        for name, entry in header.items():
            self.tensors[name] = _tensor_info(path, name, entry, self.header_bytes, self.file.size_bytes)
        _check_layout(path, list(self.tensors.values()), self.header_bytes, self.file.size_bytes)

    def raw(self, name: str) -> npt.NDArray[np.uint8]:
        """The tensor's bytes [nbytes], uint8, a view on the map; its address may be odd."""
        info = self.tensors[name]
        return self.file.view(info.offset, info.nbytes)


def open_folder(folder: Path) -> dict[str, SafetensorsFile]:
    """The weights of a Hugging Face folder: tensor name → the file that holds it.

    Raises ModelFileError for a missing shard or a tensor that its shard lacks, UnsupportedModelError for folders that
    hold pickles only.
    """
    index_path = folder / INDEX_NAME
    if index_path.exists():
        return _open_shards(folder, index_path)
    if (folder / SINGLE_NAME).exists():
        single = SafetensorsFile(folder / SINGLE_NAME)
        return dict.fromkeys(single.tensors, single)
    names = sorted(p.name for p in folder.iterdir())
    shards = [n for n in names if n.endswith(".safetensors")]
    if len(shards) == 1 and not re.search(r"-\d+-of-\d+\.", shards[0]):
        single = SafetensorsFile(folder / shards[0])
        return dict.fromkeys(single.tensors, single)
    if shards:
        raise ModelFileError(f"{folder}: {len(shards)} safetensors files and no {INDEX_NAME} to say what is where")
    pickles = [n for n in names if Path(n).suffix.lower() in PICKLE_SUFFIXES and n != "training_args.bin"]
    if pickles:
        raise UnsupportedModelError(
            f"{folder}: only pickled weights ({pickles[0]}); pickles can run code and are never opened; "
            "convert them to safetensors where you trust them"
        )
    raise ModelFileError(f"{folder}: no weights: neither {SINGLE_NAME} nor {INDEX_NAME}")


def _open_shards(folder: Path, index_path: Path) -> dict[str, SafetensorsFile]:
    weight_map = read_json(index_path).get("weight_map")
    if not isinstance(weight_map, dict) or not weight_map:
        raise ModelFileError(f"{index_path}: weight_map is missing or empty")
    opened: dict[str, SafetensorsFile] = {}
    owners: dict[str, SafetensorsFile] = {}
    for tensor, shard in weight_map.items():
        if not isinstance(shard, str) or not re.fullmatch(r"[\w][\w.\- ]*", shard):
            raise ModelFileError(f"{index_path}: tensor {tensor!r} names the shard {shard!r}, not a plain file name")
        if shard not in opened:
            if not (folder / shard).exists():
                raise ModelFileError(f"{index_path}: the shard {shard!r} (of tensor {tensor!r}) is missing")
            opened[shard] = SafetensorsFile(folder / shard)
        if tensor not in opened[shard].tensors:
            raise ModelFileError(f"{folder / shard}: tensor {tensor!r} is missing though the index says it is there")
        owners[tensor] = opened[shard]
    for shard, file in opened.items():
        stray = next((t for t in file.tensors if owners.get(t) is not file), None)
        if stray is not None:
            raise ModelFileError(f"{folder / shard}: holds tensor {stray!r}, which the index does not place there")
    return owners


def _tensor_info(path: Path, name: str, entry: Any, base: int, size: int) -> TensorInfo:
    where = f"{path}: tensor {name!r}"
    if not isinstance(entry, dict):
        raise ModelFileError(f"{where}: its header entry is no object")
    label = entry.get("dtype")
    if not isinstance(label, str):
        raise ModelFileError(f"{where}: dtype is missing")
    dtype = SAFETENSORS_TYPES.get(label)
    if dtype is None:
        raise UnsupportedModelError(f"{where} has the unknown dtype {label!r}")
    shape, offsets = _naturals(entry.get("shape")), _naturals(entry.get("data_offsets"))
    if shape is None or len(shape) > MAX_DIMS:
        raise ModelFileError(f"{where}: shape must be a list of up to {MAX_DIMS} sizes")
    if offsets is None or len(offsets) != 2:
        raise ModelFileError(f"{where}: data_offsets must be two offsets")
    begin, end = offsets
    nbytes = prod(shape) * dtype.group_bytes
    if end - begin != nbytes:
        raise ModelFileError(f"{where}: {end - begin} bytes for shape {shape} of {label}, which takes {nbytes}")
    if base + end > size:
        raise ModelFileError(f"{where}: truncated: it ends at byte {base + end}, the file has {size}")
    return TensorInfo(name, dtype, tuple(shape), base + begin, nbytes)


def _check_layout(path: Path, tensors: list[TensorInfo], base: int, size: int) -> None:
    """Data must be covered once and wholly, as the format demands: no overlaps, no holes to hide things in."""
    expected, previous = base, "the header"
    for info in sorted(tensors, key=lambda t: (t.offset, t.nbytes)):
        if info.offset < expected:
            raise ModelFileError(f"{path}: tensor {info.name!r} overlaps {previous}")
        if info.offset > expected:
            raise ModelFileError(f"{path}: {info.offset - expected} unclaimed bytes before tensor {info.name!r}")
        expected, previous = info.offset + info.nbytes, f"tensor {info.name!r}"
    if expected != size:
        raise ModelFileError(f"{path}: {size - expected} unclaimed bytes after {previous}")


def _naturals(value: Any) -> list[int] | None:
    """The value when it is a list of integers that a size or offset can be, else None."""
    ok = isinstance(value, list) and all(type(v) is int and 0 <= v < 1 << 62 for v in value)
    return value if ok else None
