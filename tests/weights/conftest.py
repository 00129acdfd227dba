"""A small GGUF file with every kind of value, and a way to load made-up ones."""

from __future__ import annotations

from pathlib import Path

import gguf
import numpy as np
import pytest

from headrace.weights.gguf import GGUFFile
from tests.weights.gguf_bytes import File


def load_gguf(folder: Path, content: bytes | File) -> GGUFFile:
    path = folder / "made.gguf"
    path.write_bytes(content if isinstance(content, bytes) else content.build())
    return GGUFFile(path)


@pytest.fixture(scope="session")
def small(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A file with every kind of value and several tensor types, as the gguf package writes it."""
    path = tmp_path_factory.mktemp("gguf") / "small.gguf"
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_uint8("a.u8", 200)
    writer.add_int8("a.i8", -3)
    writer.add_uint16("a.u16", 65535)
    writer.add_int16("a.i16", -32768)
    writer.add_uint32("a.u32", 1 << 31)
    writer.add_int32("a.i32", -5)
    writer.add_uint64("a.u64", 1 << 63)
    writer.add_int64("a.i64", -(1 << 62))
    writer.add_float32("a.f32", 0.5)
    writer.add_float64("a.f64", 0.1)
    writer.add_bool("a.yes", True)
    writer.add_bool("a.no", False)
    writer.add_string("a.text", "häd räce")
    writer.add_array("a.strings", ["", "x", "日本"])
    writer.add_array("a.ints", [1, -2, 3])
    writer.add_array("a.floats", [0.25, 0.5])
    rng = np.random.default_rng(0)
    for name, kind in (
        ("m.q4_0", "Q4_0"),
        ("m.q4_1", "Q4_1"),
        ("m.q8_0", "Q8_0"),
        ("m.f16", "F16"),
        ("m.bf16", "BF16"),
    ):
        kind_id = gguf.GGMLQuantizationType[kind]
        weights = rng.standard_normal((3, 64)).astype(np.float32)
        writer.add_tensor(name, gguf.quantize(weights, kind_id), raw_dtype=kind_id)
    writer.add_tensor("v.f32", rng.standard_normal(5).astype(np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path
