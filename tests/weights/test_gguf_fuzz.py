"""Whatever the bytes, the GGUF reader reads them or refuses them with one of its two errors."""

from __future__ import annotations

import struct
from pathlib import Path

from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from headrace.core.errors import ModelFileError, UnsupportedModelError
from tests.weights.conftest import load_gguf


@settings(max_examples=400, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_mutated_files_are_read_or_refused_and_nothing_else(small: Path, tmp_path: Path, data: st.DataObject) -> None:
    content = bytearray(small.read_bytes())
    for _ in range(data.draw(st.integers(1, 6))):
        at = data.draw(st.integers(0, len(content) - 1))
        patch = data.draw(
            st.one_of(
                st.binary(min_size=1, max_size=9),
                st.sampled_from(
                    [struct.pack("<Q", n) for n in (0, 1, 1 << 31, 1 << 32, 1 << 62, 1 << 63, (1 << 64) - 1)]
                ),
            )
        )
        content[at : at + len(patch)] = patch
    if data.draw(st.booleans()):
        del content[data.draw(st.integers(0, len(content) - 1)) :]
    read_or_refuse(tmp_path, bytes(content))


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(content=st.binary(max_size=400))
@example(b"GGUF")
@example(b"GGUF\x03\0\0\0")
def test_random_bytes_behind_the_magic_are_read_or_refused(tmp_path: Path, content: bytes) -> None:
    read_or_refuse(tmp_path, b"GGUF\x03\0\0\0" + content)


def read_or_refuse(folder: Path, content: bytes) -> None:
    try:
        file = load_gguf(folder, content)
    except (ModelFileError, UnsupportedModelError):
        return
    for name, info in file.tensors.items():
        assert file.raw(name).nbytes == info.nbytes
