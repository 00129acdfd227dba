"""The GGUF reader reads what the gguf package writes, and names what is wrong with everything else."""

from __future__ import annotations

import struct
import tracemalloc
from collections.abc import Callable
from pathlib import Path

import gguf
import numpy as np
import pytest

from headrace.core.errors import ModelFileError, UnsupportedModelError
from headrace.weights.elements import GGML_TYPES, ElementType
from headrace.weights.gguf import GGUFFile
from tests.weights.conftest import load_gguf
from tests.weights.gguf_bytes import ARRAY, BOOL, F32, STRING, U8, U32, U64, File, Tensor, array, key, text


def test_metadata_and_tensors_equal_the_gguf_packages_reading(small: Path) -> None:
    ours, theirs = GGUFFile(small), gguf.GGUFReader(small)
    for name, value in theirs.fields.items():
        if not name.startswith("GGUF."):
            mine = ours.metadata[name]
            assert (mine.tolist() if hasattr(mine, "tolist") else mine) == value.contents(), name
    assert set(ours.tensors) == {t.name for t in theirs.tensors}
    for tensor in theirs.tensors:
        info = ours.tensors[tensor.name]
        assert info.dtype.label == tensor.tensor_type.name
        assert info.shape == tuple(reversed([int(n) for n in tensor.shape]))
        assert info.offset == tensor.data_offset
        assert ours.raw(tensor.name).tobytes() == tensor.data.tobytes()


def test_type_table_equals_the_gguf_packages() -> None:
    sizes = {int(kind): (kind.name, *size) for kind, size in gguf.GGML_QUANT_SIZES.items()}
    assert {i: t.value for i, t in GGML_TYPES.items()} == sizes


def test_values_have_their_python_types(small: Path) -> None:
    metadata = GGUFFile(small).metadata
    assert metadata["a.yes"] is True
    assert metadata["a.no"] is False
    assert type(metadata["a.u64"]) is int and metadata["a.u64"] == 1 << 63
    assert metadata["a.strings"].tolist() == ["", "x", "日本"]


def test_a_file_cut_anywhere_names_what_was_being_read(small: Path, tmp_path: Path) -> None:
    content = small.read_bytes()
    end_offset = GGUFFile(small).end_offset  # behind it there is only padding, which may be missing
    assert set(content[end_offset:]) <= {0}
    for length in range(end_offset):
        with pytest.raises(ModelFileError, match=r"truncated|claims|empty|bytes"):
            load_gguf(tmp_path, content[:length])


HOSTILE: list[tuple[str, File, type[Exception], str]] = [
    ("key count 2^63", File(num_keys=1 << 63), ModelFileError, "header: claims 9223372036854775808 metadata keys"),
    ("tensor count 2^63", File(num_tensors=1 << 63), ModelFileError, "claims 9223372036854775808 tensors"),
    ("count past the file", File(num_keys=50), ModelFileError, "claims 50 metadata keys"),
    ("key longer than the file", File([text("k", 1 << 40)]), ModelFileError, "metadata key 1 of 1: a string of"),
    ("key of 2^64-1 bytes", File([text("k", (1 << 64) - 1)]), ModelFileError, "a string of 18446744073709551615"),
    ("string longer than the file", File([key("k", STRING, text("v", 1 << 50))]), ModelFileError, "metadata key 'k'"),
    ("value type 99", File([key("k", 99, b"\0" * 8)]), ModelFileError, "metadata key 'k': unknown value type 99"),
    ("array of 2^63", File([key("k", ARRAY, array(U8, 1 << 63, b""))]), ModelFileError, "'k': claims 92233"),
    ("array of wider elements", File([key("k", ARRAY, array(U64, 8, b"\0" * 32))]), ModelFileError, "8 elements of 8"),
    ("strings 2^62", File([key("k", ARRAY, array(STRING, 1 << 62, b""))]), ModelFileError, "'k': claims 46116"),
    (
        "long string in an array",
        File([key("k", ARRAY, array(STRING, 2, text("ok") + text("v", 1 << 33) + b"\0" * 32))]),
        ModelFileError,
        "'k': string 1 of 2 has 8589934592 bytes",
    ),
    (
        "string of 2^64-1 in an array",
        File([key("k", ARRAY, array(STRING, 1, text("v", (1 << 64) - 1)))]),
        ModelFileError,
        "'k': string 0 of 1",
    ),
    ("bad UTF-8", File([key("k", STRING, text(b"\xff\xfe"))]), ModelFileError, "metadata key 'k': .* not UTF-8"),
    ("array of arrays", File([key("k", ARRAY, array(ARRAY, 1, b"\0" * 16))]), UnsupportedModelError, "'k': arrays of"),
    ("array of type 77", File([key("k", ARRAY, array(77, 1, b"\0" * 16))]), ModelFileError, "element type 77"),
    ("key twice", File([key("k", U32, 1), key("k", U32, 2)]), ModelFileError, "metadata key 'k': appears twice"),
    ("alignment 0", File([key("general.alignment", U32, 0)]), ModelFileError, "'general.alignment': must be a power"),
    ("alignment 3", File([key("general.alignment", U32, 3)]), ModelFileError, "'general.alignment': must be a power"),
    ("alignment 2^31", File([key("general.alignment", U32, 1 << 31)]), ModelFileError, "'general.alignment'"),
    ("alignment a text", File([key("general.alignment", STRING, "32")]), ModelFileError, "'general.alignment'"),
    ("alignment a bool", File([key("general.alignment", BOOL, 1)]), ModelFileError, "'general.alignment'"),
    ("alignment a float", File([key("general.alignment", F32, 32.0)]), ModelFileError, "'general.alignment'"),
    ("offset past the end", File([], [Tensor("t", [8], offset=4096)], bytes(32)), ModelFileError, "'t': truncated"),
    (
        "offset 2^64-32",
        File([], [Tensor("t", [8], offset=(1 << 64) - 32)], bytes(32)),
        ModelFileError,
        "'t': truncated",
    ),
    ("offset not aligned", File([], [Tensor("t", [1], offset=4)], bytes(32)), ModelFileError, "'t': offset 4 is not"),
    (
        "overlap",
        File([], [Tensor("a", [16]), Tensor("b", [8], offset=32)], bytes(64)),
        ModelFileError,
        "tensor 'b': overlaps tensor 'a'",
    ),
    ("same place", File([], [Tensor("a", [8]), Tensor("b", [8])], bytes(32)), ModelFileError, "overlaps tensor"),
    (
        "tensor twice",
        File([], [Tensor("a", [8]), Tensor("a", [8], offset=32)], bytes(64)),
        ModelFileError,
        "'a': appears",
    ),
    ("no dimensions", File([], [Tensor("t", [])], bytes(64)), ModelFileError, "'t': has 0 dimensions"),
    ("nine dimensions", File([], [Tensor("t", [1] * 9)], bytes(64)), ModelFileError, "'t': has 9 dimensions"),
    ("empty dimension", File([], [Tensor("t", [8, 0])], bytes(64)), ModelFileError, "impossible shape"),
    ("product past 2^64", File([], [Tensor("t", [1 << 33, 1 << 33])], bytes(64)), ModelFileError, "impossible shape"),
    ("huge but lawful", File([], [Tensor("t", [1 << 30, 1 << 30])], bytes(64)), ModelFileError, "'t': truncated"),
    ("split group", File([], [Tensor("t", [33], type_id=2)], bytes(64)), ModelFileError, "Q4_0's group of 32"),
    (
        "type 4 (removed)",
        File([], [Tensor("t", [32], type_id=4)], bytes(64)),
        UnsupportedModelError,
        "'t' has the unknown",
    ),
    (
        "type 2^31",
        File([], [Tensor("t", [32], type_id=1 << 31)], bytes(64)),
        UnsupportedModelError,
        "type id 2147483648",
    ),
    ("version 1", File(version=1), UnsupportedModelError, "GGUF version 1"),
    ("version 4", File(version=4), UnsupportedModelError, "GGUF version 4"),
    ("big-endian", File(version=3 << 24), UnsupportedModelError, "big-endian"),
    ("another magic", File(magic=b"GGML"), ModelFileError, "not a GGUF file"),
]


@pytest.mark.parametrize(("file", "error", "message"), [h[1:] for h in HOSTILE], ids=[h[0] for h in HOSTILE])
def test_hostile_files_are_refused_by_name(tmp_path: Path, file: File, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message) as raised:
        load_gguf(tmp_path, file)
    assert type(raised.value) is error
    assert "made.gguf" in str(raised.value)


def test_hostile_counts_allocate_nothing(tmp_path: Path) -> None:
    padding = key("padding", ARRAY, array(U8, 1 << 20, bytes(1 << 20)))
    for file in (
        File([padding, key("k", ARRAY, array(STRING, 1 << 40, b""))]),
        File([padding, key("k", ARRAY, array(U64, 1 << 40, b""))]),
        File([padding, key("k", STRING, text("v", 1 << 40))]),
        File([padding], [Tensor("t", [1 << 40])]),
        File([padding], num_tensors=1 << 40),
    ):
        tracemalloc.start()
        try:
            with pytest.raises(ModelFileError):
                load_gguf(tmp_path, file)
            assert tracemalloc.get_traced_memory()[1] < 4 << 20
        finally:
            tracemalloc.stop()


def test_arrays_keep_any_nonzero_byte_as_true(tmp_path: Path) -> None:
    file = load_gguf(tmp_path, File([key("k", ARRAY, array(BOOL, 3, b"\0\x01\x07")), key("one", BOOL, b"\x07")]))
    assert file.metadata["k"] == [False, True, True]
    assert file.metadata["one"] is True


def test_strings_of_an_array_are_made_when_asked_for(tmp_path: Path) -> None:
    file = load_gguf(tmp_path, File([key("k", ARRAY, array(STRING, 3, text("a") + text("") + text("日本")))]))
    strings = file.metadata["k"]
    assert (len(strings), strings[2], strings[1:], list(strings)) == (3, "日本", ["", "日本"], ["a", "", "日本"])


def test_strings_that_are_no_utf8_are_refused_when_read(tmp_path: Path) -> None:
    file = load_gguf(tmp_path, File([key("k", ARRAY, array(STRING, 1, text(b"\xff")))]))
    with pytest.raises(ModelFileError, match="metadata key 'k': a string is not UTF-8"):
        file.metadata["k"].tolist()


def test_small_alignments_and_unsorted_tensors_are_read(tmp_path: Path) -> None:
    tensors = [Tensor("b", [2], offset=8), Tensor("a", [2], offset=0)]
    file = File([key("general.alignment", U32, 8)], tensors, struct.pack("<4f", 1, 2, 3, 4), alignment=8)
    read = load_gguf(tmp_path, file)
    assert read.raw("a").view(np.float32).tolist() == [1, 2]
    assert read.raw("b").view(np.float32).tolist() == [3, 4]
    assert read.tensors["a"].dtype is ElementType.F32


FOREIGN = {
    "Git LFS pointer": b"version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 1\n",
    "HTML page": b"<!doctype html><html></html>",
    "empty": b"",
}


@pytest.mark.parametrize("what", FOREIGN)
def test_what_is_no_model_file_is_called_by_its_name(tmp_path: Path, what: str) -> None:
    with pytest.raises(ModelFileError, match=what):
        load_gguf(tmp_path, FOREIGN[what])


def test_missing_files_folders_and_devices_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ModelFileError, match="No such file"):
        GGUFFile(tmp_path / "absent.gguf")
    with pytest.raises(ModelFileError, match="not a regular file"):
        GGUFFile(tmp_path)
    with pytest.raises(ModelFileError, match="not a regular file"):
        GGUFFile(Path("/dev/zero"))


def test_the_demo_file_is_read_whole(smollm2_path: Path) -> None:
    file = GGUFFile(smollm2_path)
    assert (len(file.metadata), len(file.tensors)) == (33, 272)
    assert len(file.metadata["tokenizer.ggml.tokens"]) == 49152
    assert file.metadata["tokenizer.ggml.merges"][:2] == ["Ġ t", "Ġ a"]
    assert file.end_offset == file.file.size_bytes


def test_pages_can_be_dropped_and_read_again(small: Path) -> None:
    file = GGUFFile(small)
    before = {name: file.raw(name).tobytes() for name in file.tensors}
    for info in file.tensors.values():
        file.file.drop_pages(info.offset, info.nbytes)
    file.file.drop_pages(0, file.file.size_bytes)
    assert {name: file.raw(name).tobytes() for name in file.tensors} == before


def test_views_outlive_the_closing_of_a_file(small: Path) -> None:
    file = GGUFFile(small)
    view = file.raw("v.f32")
    before = view.tobytes()
    file.file.close()
    assert view.tobytes() == before


def test_reading_is_unchanged_by_the_writer_of_tiny_models(tiny_gguf: Callable[..., Path]) -> None:
    file = GGUFFile(tiny_gguf("qwen2", "Q8_0"))
    assert file.metadata["general.architecture"] == "qwen2"
    assert file.metadata["tokenizer.ggml.token_type"].typecode == "i"
