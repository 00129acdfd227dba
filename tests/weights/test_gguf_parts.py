"""Split GGUF models load from any part, and what is wrong with a set of parts is named."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import gguf
import pytest

from headrace.core.errors import ModelFileError
from headrace.weights.checkpoint import open_checkpoint
from headrace.weights.gguf import GGUFFile
from tests.weights.gguf_bytes import U16, File, Tensor, key


def part_name(number: int, count: int = 3) -> str:
    return f"m-{number:05d}-of-{count:05d}.gguf"


def split(source: Path, folder: Path, count: int = 3) -> list[Path]:
    """Splits a model as llama.cpp's gguf-split does: all metadata in part 1, split.* in every part."""
    reader = gguf.GGUFReader(source)
    folder.mkdir(parents=True, exist_ok=True)
    paths = []
    for number in range(count):
        path = folder / part_name(number + 1, count)
        writer = gguf.GGUFWriter(path, "llama")
        writer.add_uint16("split.no", number)
        writer.add_uint16("split.count", count)
        writer.add_int32("split.tensors.count", len(reader.tensors))
        for name, field in reader.fields.items() if number == 0 else ():
            if not name.startswith(("GGUF.", "general.architecture")):
                kind = field.types[0]
                writer.add_key_value(name, field.contents(), kind, sub_type=field.types[-1])
        for tensor in reader.tensors[number::count]:
            writer.add_tensor(tensor.name, tensor.data, raw_dtype=tensor.tensor_type)
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()
        paths.append(path)
    return paths


@pytest.fixture
def parts(tiny_gguf: Callable[..., Path], tmp_path: Path) -> list[Path]:
    return split(tiny_gguf("llama", "Q8_0"), tmp_path / "parts")


def test_any_part_opens_the_whole_model(tiny_gguf: Callable[..., Path], parts: list[Path]) -> None:
    whole = open_checkpoint(tiny_gguf("llama", "Q8_0"))
    for part in parts:
        joined = open_checkpoint(part)
        assert joined.config == whole.config
        for name in whole.names():
            assert joined.tensor(name).raw.tobytes() == whole.tensor(name).raw.tobytes()


def test_a_missing_part_is_named(parts: list[Path]) -> None:
    parts[2].unlink()
    with pytest.raises(ModelFileError, match=r"part 3 of 3 is missing: m-00003-of-00003.gguf"):
        open_checkpoint(parts[1])


def test_a_part_under_another_name_asks_for_its_name(parts: list[Path]) -> None:
    renamed = parts[1].rename(parts[1].with_name("model.gguf"))
    with pytest.raises(ModelFileError, match=r"part 2 of 3; parts are found by their names"):
        open_checkpoint(renamed)


def test_parts_in_the_wrong_order_are_named(parts: list[Path]) -> None:
    shutil.copy(parts[0], parts[1])
    with pytest.raises(
        ModelFileError, match=r"00002-of-00003.gguf: its metadata says part 1 of 3, its name says part 2"
    ):
        open_checkpoint(parts[0])


def test_parts_of_two_models_are_told_apart(tiny_gguf: Callable[..., Path], parts: list[Path], tmp_path: Path) -> None:
    other = split(tiny_gguf("qwen3", "Q8_0"), tmp_path / "other")
    shutil.copy(other[1], parts[1])
    with pytest.raises(
        ModelFileError, match=r"00002-of-00003.gguf: is a part of a model of \d+ tensors, part 1 of one of"
    ):
        open_checkpoint(parts[0])
    same_count = split(tiny_gguf("llama-rope3", "Q8_0"), tmp_path / "same")
    claimed = GGUFFile(parts[0]).metadata["split.tensors.count"]
    assert GGUFFile(same_count[0]).metadata["split.tensors.count"] == claimed + 1


def test_parts_joined_with_cat_are_recognised(parts: list[Path], tmp_path: Path) -> None:
    joined = tmp_path / "joined.gguf"
    joined.write_bytes(b"".join(p.read_bytes() for p in parts))
    with pytest.raises(
        ModelFileError, match=r"another GGUF file begins at byte \d+: parts joined with cat \(it says 3"
    ):
        open_checkpoint(joined)


@pytest.mark.parametrize(("count", "message"), [(600, "says 600 parts"), (2, "parts are found by their names")])
def test_a_part_count_that_lies_is_refused(tmp_path: Path, count: int, message: str) -> None:
    file = File([key("split.count", U16, count), key("split.no", U16, 0)], [Tensor("t", [8])], bytes(32))
    path = tmp_path / "single.gguf"
    path.write_bytes(file.build())
    with pytest.raises(ModelFileError, match=message):
        open_checkpoint(path)
