"""headrace's own cache folder, and files in it whose SHA-256 was checked once."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from headrace.core.errors import ConfigError, ModelFileError
from headrace.weights.hub.progress import Progress

_CHUNK_BYTES = 1 << 20


def cache_dir() -> Path:
    """HEADRACE_CACHE, else XDG_CACHE_HOME/headrace, else ~/.cache/headrace. Not created here."""
    if explicit := os.environ.get("HEADRACE_CACHE"):
        return Path(explicit).expanduser().absolute()
    base = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    return Path(base).expanduser().absolute() / "headrace"


def models_dir() -> Path:
    """The folder of model files in the cache, created when missing. ConfigError when it cannot be."""
    folder = cache_dir() / "models"
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigError(
            f"the cache folder {folder} cannot be made ({error.strerror}); set HEADRACE_CACHE to one you may write to"
        ) from error
    return folder


@contextmanager
def scratch_dir() -> Iterator[Path]:
    """A folder for half-done work, on the cache's file system so that results can be renamed into place."""
    try:
        with tempfile.TemporaryDirectory(prefix=".fetch-", dir=models_dir(), ignore_cleanup_errors=True) as name:
            yield Path(name)
    except PermissionError as error:
        raise ConfigError(f"cannot write to {models_dir()}; set HEADRACE_CACHE to a folder you may write to") from error


def is_verified(path: Path, sha256: str, progress: Progress) -> bool:
    """Whether the file has that SHA-256.

    Hashing takes some tenths of a second, so a stamp beside the file (size, mtime, hash) spares it at later starts; a
    changed size or mtime makes the stamp void.
    """
    try:
        status = path.stat()
    except OSError:
        return False
    expected = {"size": status.st_size, "mtime_ns": status.st_mtime_ns, "sha256": sha256}
    stamp = _stamp_path(path)
    try:
        if json.loads(stamp.read_bytes()) == expected:
            return True
    except (OSError, ValueError, RecursionError):
        pass
    if file_sha256(path, progress) != sha256:
        return False
    _write_atomically(stamp, json.dumps(expected).encode())
    return True


def file_sha256(path: Path, progress: Progress) -> str:
    digest = hashlib.sha256()
    size = path.stat().st_size
    done = 0
    with path.open("rb") as file:
        while chunk := file.read(_CHUNK_BYTES):
            digest.update(chunk)
            done += len(chunk)
            progress("verify", done, size)
    return digest.hexdigest()


def copy_checked(source: IO[bytes], target: Path, *, size: int, sha256: str, where: str, progress: Progress) -> None:
    """Copies exactly `size` bytes of that SHA-256 to `target`; ModelFileError naming `where` otherwise.

    Never writes more than `size` bytes, whatever the source holds.
    """
    digest = hashlib.sha256()
    done = 0
    with target.open("wb") as file:
        while chunk := source.read(min(_CHUNK_BYTES, size - done + 1)):
            done += len(chunk)
            if done > size:
                break
            digest.update(chunk)
            file.write(chunk)
            progress("extract", done, size)
        file.flush()
        os.fsync(file.fileno())
    if done != size or digest.hexdigest() != sha256:
        raise ModelFileError(
            f"{where}: not the expected file (SHA-256 {digest.hexdigest()[:16]}…, want {sha256[:16]}…)"
        )


def install(source: Path, target: Path, sha256: str) -> Path:
    """Renames a checked file into its final place, atomically, and stamps it."""
    os.replace(source, target)
    status = target.stat()
    stamp = {"size": status.st_size, "mtime_ns": status.st_mtime_ns, "sha256": sha256}
    _write_atomically(_stamp_path(target), json.dumps(stamp).encode())
    return target


def link_or_copy(source: Path, target: Path) -> None:
    """A hard link where the file system allows it (no second copy on disk), else a copy."""
    try:
        os.link(source, target)
    except OSError:
        shutil.copyfile(source, target)


def _stamp_path(path: Path) -> Path:
    return path.with_name(path.name + ".verified.json")


def _write_atomically(path: Path, content: bytes) -> None:
    # A stamp is a convenience: a read-only cache folder is fine, it only costs the hash again.
    try:
        with tempfile.NamedTemporaryFile(dir=path.parent, prefix=".stamp-", delete=False) as file:
            file.write(content)
        os.replace(file.name, path)
    except OSError:
        return
