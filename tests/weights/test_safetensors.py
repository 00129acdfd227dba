"""The safetensors reader reads what the safetensors package writes, and names what is wrong with everything else."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.numpy
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from headrace.core.errors import ModelFileError, UnsupportedModelError
from headrace.weights.elements import ElementType
from headrace.weights.safetensors import SafetensorsFile, open_folder


def content(header: dict[str, Any] | bytes, data: bytes = b"", length: int | None = None) -> bytes:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return (len(text) if length is None else length).to_bytes(8, "little") + text + data


def entry(dtype: str, shape: list[int], begin: int, end: int) -> dict[str, Any]:
    return {"dtype": dtype, "shape": shape, "data_offsets": [begin, end]}


def load(folder: Path, raw: bytes) -> SafetensorsFile:
    path = folder / "model.safetensors"
    path.write_bytes(raw)
    return SafetensorsFile(path)


def test_tensors_equal_the_safetensors_packages(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    tensors = {
        "a": rng.standard_normal((3, 5)).astype(np.float32),
        "b": rng.standard_normal(7).astype(np.float16),
        "c": np.arange(6, dtype=np.int64).reshape(2, 3),
        "empty": np.zeros((0, 4), np.float32),
    }
    safetensors.numpy.save_file(tensors, tmp_path / "model.safetensors", metadata={"format": "np"})
    file = SafetensorsFile(tmp_path / "model.safetensors")
    assert file.metadata == {"format": "np"}
    assert {n: t.shape for n, t in file.tensors.items()} == {n: t.shape for n, t in tensors.items()}
    for name, tensor in tensors.items():
        assert file.raw(name).tobytes() == tensor.tobytes()
    assert [file.tensors[n].dtype for n in "abc"] == [ElementType.F32, ElementType.F16, ElementType.I64]


def test_a_mix_of_float_types_is_read_and_told_apart(tmp_path: Path) -> None:
    header = {"x": entry("BF16", [2], 0, 4), "y": entry("F16", [2], 4, 8), "z": entry("F8_E4M3", [2], 8, 10)}
    file = load(tmp_path, content(header, bytes(10)))
    assert [t.dtype.label for t in file.tensors.values()] == ["BF16", "F16", "F8_E4M3"]


LIES: list[tuple[str, bytes, type[Exception], str]] = [
    ("shorter than a length", b"\x01\x02", ModelFileError, "truncated: 8 bytes wanted"),
    ("header past the end", content(b"{}", length=3), ModelFileError, "header: claims 3 bytes"),
    ("header 2^63", content(b"{}", length=1 << 63), ModelFileError, "header: claims 9223372036854775808 bytes"),
    ("not JSON", content(b"{nonsense"), ModelFileError, "header: not valid JSON"),
    ("not UTF-8", content(b'{"\xff": 1}'), ModelFileError, "header: not valid JSON"),
    ("a list", content(b"[]"), ModelFileError, "a JSON object was expected, found list"),
    ("deep", content(b'{"a":' + b"[" * 200_000), ModelFileError, "header: not valid JSON"),
    ("twice", content(b'{"a": 1, "a": 2}'), ModelFileError, "key 'a' appears twice"),
    ("entry a number", content({"t": 1}), ModelFileError, "tensor 't': its header entry is no object"),
    ("no dtype", content({"t": {"shape": [1]}}), ModelFileError, "tensor 't': dtype is missing"),
    (
        "dtype unknown",
        content({"t": entry("F4", [1], 0, 4)}, bytes(4)),
        UnsupportedModelError,
        "'t' has the unknown .*F4",
    ),
    ("negative size", content({"t": entry("F32", [-1], 0, 4)}, bytes(4)), ModelFileError, "'t': shape must be"),
    (
        "fractional size",
        content(b'{"t":{"dtype":"U8","shape":[1.5],"data_offsets":[0,1]}}'),
        ModelFileError,
        "'t': shape",
    ),
    (
        "true as a size",
        content(b'{"t":{"dtype":"U8","shape":[true],"data_offsets":[0,1]}}'),
        ModelFileError,
        "'t': shape",
    ),
    ("nine dimensions", content({"t": entry("U8", [1] * 9, 0, 1)}, b"1"), ModelFileError, "'t': shape must be"),
    ("one offset", content({"t": {"dtype": "U8", "shape": [1], "data_offsets": [0]}}), ModelFileError, "two offsets"),
    ("size and shape differ", content({"t": entry("F32", [2], 0, 4)}, bytes(4)), ModelFileError, "takes 8"),
    ("end before begin", content({"t": entry("F32", [1], 4, 0)}, bytes(4)), ModelFileError, "'t': -4 bytes"),
    ("past the end", content({"t": entry("F32", [2], 0, 8)}, bytes(4)), ModelFileError, "'t': truncated"),
    (
        "overlap",
        content({"a": entry("U8", [4], 0, 4), "b": entry("U8", [4], 2, 6)}, bytes(6)),
        ModelFileError,
        "tensor 'b' overlaps tensor 'a'",
    ),
    (
        "hole",
        content({"a": entry("U8", [1], 0, 1), "b": entry("U8", [1], 3, 4)}, bytes(4)),
        ModelFileError,
        "2 unclaimed bytes before tensor 'b'",
    ),
    ("rest", content({"a": entry("U8", [1], 0, 1)}, bytes(4)), ModelFileError, "3 unclaimed bytes after tensor 'a'"),
]


@pytest.mark.parametrize(("raw", "error", "message"), [c[1:] for c in LIES], ids=[c[0] for c in LIES])
def test_lies_are_refused_by_name(tmp_path: Path, raw: bytes, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message) as raised:
        load(tmp_path, raw)
    assert type(raised.value) is error


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_mutated_files_are_read_or_refused_and_nothing_else(tmp_path: Path, data: st.DataObject) -> None:
    raw = bytearray(content({"a": entry("F32", [2], 0, 8), "b": entry("U8", [4], 8, 12)}, bytes(range(12))))
    for _ in range(data.draw(st.integers(1, 5))):
        at = data.draw(st.integers(0, len(raw) - 1))
        patch = data.draw(
            st.binary(min_size=1, max_size=4) | st.sampled_from([b"0", b"9", b"]", b"}", b"-", b"e9", b'"'])
        )
        raw[at : at + len(patch)] = patch
    try:
        file = load(tmp_path, bytes(raw))
    except (ModelFileError, UnsupportedModelError):
        return
    assert all(file.raw(n).nbytes == t.nbytes for n, t in file.tensors.items())


def shards(folder: Path, weight_map: dict[str, Any]) -> None:
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}))


def test_shards_are_found_through_the_index(tmp_path: Path) -> None:
    (tmp_path / "one.safetensors").write_bytes(content({"a": entry("U8", [1], 0, 1)}, b"1"))
    (tmp_path / "two.safetensors").write_bytes(content({"b": entry("U8", [1], 0, 1)}, b"2"))
    shards(tmp_path, {"a": "one.safetensors", "b": "two.safetensors"})
    owners = open_folder(tmp_path)
    assert owners["a"].raw("a").tobytes() + owners["b"].raw("b").tobytes() == b"12"


@pytest.mark.parametrize(
    ("weight_map", "message"),
    [
        ({"a": "gone.safetensors"}, "the shard 'gone.safetensors' \\(of tensor 'a'\\) is missing"),
        ({"b": "one.safetensors"}, "tensor 'b' is missing though the index says"),
        ({}, "weight_map is missing or empty"),
        ({"a": "../one.safetensors"}, "names the shard '../one.safetensors', not a plain file name"),
        ({"a": "/etc/passwd"}, "not a plain file name"),
        ({"a": 5}, "names the shard 5"),
    ],
)
def test_an_index_that_lies_is_refused(tmp_path: Path, weight_map: dict[str, Any], message: str) -> None:
    folder = tmp_path / "model"
    folder.mkdir()
    for where in (folder, tmp_path):
        (where / "one.safetensors").write_bytes(content({"a": entry("U8", [1], 0, 1)}, b"1"))
    shards(folder, weight_map)
    with pytest.raises(ModelFileError, match=message):
        open_folder(folder)


def test_a_tensor_that_the_index_does_not_place_is_refused(tmp_path: Path) -> None:
    header = {"a": entry("U8", [1], 0, 1), "b": entry("U8", [1], 1, 2)}
    (tmp_path / "one.safetensors").write_bytes(content(header, b"12"))
    shards(tmp_path, {"a": "one.safetensors"})
    with pytest.raises(ModelFileError, match="holds tensor 'b', which the index does not place there"):
        open_folder(tmp_path)


def test_pickles_are_refused_unopened_and_their_folder_too(tmp_path: Path) -> None:
    canary = tmp_path / "canary"
    pickled = b"cos\nsystem\n(S'touch " + str(canary).encode() + b"'\ntR."
    (tmp_path / "pytorch_model.bin").write_bytes(pickled)
    with pytest.raises(UnsupportedModelError, match=r"only pickled weights \(pytorch_model.bin\)"):
        open_folder(tmp_path)
    with pytest.raises(UnsupportedModelError, match=r"pickles .* never opened"):
        SafetensorsFile(tmp_path / "pytorch_model.bin")
    assert not canary.exists()


def test_a_pickle_under_another_name_is_refused(tmp_path: Path) -> None:
    for raw in (b"\x80\x02}q\x00.", b"PK\x03\x04rest"):
        with pytest.raises(UnsupportedModelError, match="pickle"):
            load(tmp_path, raw)


def test_shards_without_an_index_are_refused(tmp_path: Path) -> None:
    (tmp_path / "model-00001-of-00002.safetensors").write_bytes(content({"a": entry("U8", [1], 0, 1)}, b"1"))
    with pytest.raises(ModelFileError, match=r"no model.safetensors.index.json"):
        open_folder(tmp_path)
    (tmp_path / "model-00001-of-00002.safetensors").unlink()
    with pytest.raises(ModelFileError, match="no weights"):
        open_folder(tmp_path)
