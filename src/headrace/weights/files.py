"""The one place that opens model files: read-only maps, sizes known, pickles refused."""

from __future__ import annotations

import contextlib
import json
import mmap
import os
import stat
from pathlib import Path
from typing import TYPE_CHECKING, Any

from headrace.core.errors import HeadraceError, ModelFileError, UnsupportedModelError

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

PICKLE_SUFFIXES = frozenset({".bin", ".pt", ".pth", ".pkl", ".pickle", ".ckpt"})
MAX_JSON_BYTES = 64 << 20

_FOREIGN_MAGICS: tuple[tuple[bytes, type[HeadraceError], str], ...] = (
    (
        b"version https://git-lfs",
        ModelFileError,
        "is a Git LFS pointer, not the file itself; run `git lfs pull` in its repository",
    ),
    (b"PK\x03\x04", UnsupportedModelError, "is a zip archive (or a torch pickle), not a model file"),
    (b"\x80\x02", UnsupportedModelError, "is a pickle; pickles can run code and are never opened"),
    (b"<!DOCTYPE", ModelFileError, "is an HTML page: the download saved an error page"),
    (b"<html", ModelFileError, "is an HTML page: the download saved an error page"),
)


class MappedFile:
    """A model file mapped read-only; pages come from the file and can be given back.

    NumPy is imported by `view` alone: who only reads a file's header does without.
    """

    def __init__(self, path: Path, descriptor: int, size: int) -> None:
        self.path = path
        self.size_bytes = size
        self._map = mmap.mmap(descriptor, size, flags=mmap.MAP_SHARED, prot=mmap.PROT_READ)
        self._memory: memoryview | None = None

    @property
    def memory(self) -> memoryview:
        """All bytes, not copied."""
        if self._memory is None:
            self._memory = memoryview(self._map)
        return self._memory

    def read(self, offset: int, nbytes: int) -> bytes:
        """A copy of `nbytes` bytes at `offset`. ModelFileError when the file ends before."""
        if offset < 0 or nbytes < 0 or offset + nbytes > self.size_bytes:
            raise ModelFileError(
                f"{self.path}: truncated: {nbytes} bytes wanted at offset {offset}, the file has {self.size_bytes}"
            )
        return self._map[offset : offset + nbytes]

    def view(self, offset: int, nbytes: int) -> npt.NDArray[np.uint8]:
        """`nbytes` bytes at `offset` [nbytes], uint8, not copied. ModelFileError when the file ends before."""
        if offset < 0 or nbytes < 0 or offset + nbytes > self.size_bytes:
            raise ModelFileError(
                f"{self.path}: truncated: {nbytes} bytes wanted at offset {offset}, the file has {self.size_bytes}"
            )
        import numpy as np

        return np.frombuffer(self.memory[offset : offset + nbytes], dtype=np.uint8)

    def close(self) -> None:
        """Unmaps the file, now or, while views of it are held elsewhere, when the last of them goes."""
        self._memory = None
        with contextlib.suppress(BufferError):
            self._map.close()

    def drop_pages(self, offset: int, nbytes: int) -> None:
        """Gives back the pages that lie wholly inside the range; reading them again is allowed and reads the file."""
        page = mmap.PAGESIZE
        first = -(-offset // page) * page
        last = (offset + nbytes) // page * page
        if offset + nbytes == self.size_bytes:
            last = self.size_bytes
        if last > first:
            self._map.madvise(mmap.MADV_DONTNEED, first, last - first)


def open_model_file(path: Path) -> MappedFile:
    """Maps a weights file read-only.

    Raises ModelFileError when it is missing, empty, no regular file, a Git LFS pointer or an HTML page, and
    UnsupportedModelError for pickles, by name or by first bytes: they are never opened.
    """
    if path.suffix.lower() in PICKLE_SUFFIXES:
        raise UnsupportedModelError(
            f"{path}: pickles ({path.suffix}) can run code and are never opened; use safetensors or GGUF"
        )
    try:
        # O_NONBLOCK: opening a FIFO must not wait for a writer.
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    except (OSError, ValueError) as error:
        raise ModelFileError(f"{path}: cannot be opened: {_reason(error)}") from error
    try:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode):
            raise ModelFileError(f"{path}: not a regular file")
        if status.st_size == 0:
            raise ModelFileError(f"{path}: the file is empty")
        start = os.pread(descriptor, 64, 0)
        for magic, error_type, message in _FOREIGN_MAGICS:
            if start.lstrip()[: len(magic)].lower() == magic.lower():
                raise error_type(f"{path}: {message}")
        return MappedFile(path, descriptor, status.st_size)
    finally:
        os.close(descriptor)


def read_json(path: Path, *, limit_bytes: int = MAX_JSON_BYTES) -> dict[str, Any]:
    """A JSON object from a model folder. ModelFileError when it is missing, too large, or not a JSON object."""
    try:
        with open(path, "rb") as file:
            text = file.read(limit_bytes + 1)
    except (OSError, ValueError) as error:
        raise ModelFileError(f"{path}: cannot be read: {_reason(error)}") from error
    if len(text) > limit_bytes:
        raise ModelFileError(f"{path}: larger than {limit_bytes} bytes")
    return parse_json_object(text, str(path))


def parse_json_object(text: bytes, where: str) -> dict[str, Any]:
    """Parses a JSON object. ModelFileError naming `where` for bad UTF-8 or JSON, duplicate keys, too deep nesting."""

    def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        found = dict(pairs)
        if len(found) != len(pairs):
            seen: set[str] = set()
            for key, _ in pairs:
                if key in seen:
                    raise ModelFileError(f"{where}: key {key!r} appears twice")
                seen.add(key)
        return found

    try:
        value = json.loads(text, object_pairs_hook=unique)
    except (ValueError, RecursionError) as error:
        if text.startswith(b"version https://git-lfs"):
            raise ModelFileError(f"{where}: is a Git LFS pointer; run `git lfs pull` in its repository") from error
        raise ModelFileError(f"{where}: not valid JSON: {error}") from error
    if not isinstance(value, dict):
        raise ModelFileError(f"{where}: a JSON object was expected, found {type(value).__name__}")
    return value


def _reason(error: Exception) -> str:
    return (error.strerror if isinstance(error, OSError) else None) or str(error)
