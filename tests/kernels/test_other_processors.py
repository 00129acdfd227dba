"""The kernels on processors other than this one: native/tests/kernel_check.cpp, built here and run under QEMU.

An instruction the emulated processor lacks ends the program with SIGILL: a passing run proves the choice at run time.
"""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
NATIVE_ARCHITECTURE = platform.machine()
CROSS_COMPILERS = {"aarch64": "aarch64-linux-gnu-g++"}
Run = Callable[..., dict[tuple[str, str], str]]

on_x86_64 = pytest.mark.skipif(
    NATIVE_ARCHITECTURE != "x86_64", reason="emulates older processors of this architecture: x86-64 only"
)


def tool(name: str, debian_package: str) -> str:
    """The path of a program; skips the test when it is missing. The environment's own bin folder comes first."""
    path = shutil.which(name, path=os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]]))
    if path is None:
        pytest.skip(f"{name} is not installed (Debian: apt install {debian_package})")
    return path


def emulator(architecture: str) -> str:
    return tool(f"qemu-{architecture}-static", "qemu-user-static")


def build(architecture: str) -> Path:
    folder = ROOT / "build" / "kernel_check" / architecture
    cmake, ninja = tool("cmake", "cmake"), tool("ninja", "ninja-build")
    options = ["-DHEADRACE_CHECK_ONLY=ON", "-DCMAKE_BUILD_TYPE=Release", f"-DCMAKE_MAKE_PROGRAM={ninja}"]
    if architecture == NATIVE_ARCHITECTURE:
        tool(os.environ.get("CXX", "c++"), "g++")
    else:
        compiler = tool(CROSS_COMPILERS[architecture], f"g++-{architecture}-linux-gnu")
        options += ["-DCMAKE_SYSTEM_NAME=Linux", f"-DCMAKE_SYSTEM_PROCESSOR={architecture}"]
        options += [f"-DCMAKE_CXX_COMPILER={compiler}", "-DCMAKE_EXE_LINKER_FLAGS=-static"]
    for command in (
        [cmake, "-S", str(ROOT), "-B", str(folder), "-G", "Ninja", *options],
        [cmake, "--build", str(folder)],
    ):
        done = subprocess.run(command, capture_output=True, text=True)
        assert done.returncode == 0, done.stdout + done.stderr
    return folder / "kernel_check"


@pytest.fixture(scope="module")
def run_check() -> Run:
    """Runs the program; returns the hash of every (level, kernel) after checking that all passed."""
    programs: dict[str, Path] = {}

    def run(architecture: str, cpu: str | None, levels: Sequence[str] = ()) -> dict[tuple[str, str], str]:
        command = [emulator(architecture), "-cpu", cpu] if cpu is not None else []
        if architecture not in programs:
            programs[architecture] = build(architecture)
        done = subprocess.run([*command, str(programs[architecture]), *levels], capture_output=True, text=True)
        assert done.returncode == 0, done.stdout + done.stderr
        *lines, verdict = done.stdout.splitlines()
        assert verdict == f"{len(lines)} passed, 0 failed"
        fields = [(line[6:18].strip(), line[20:40].strip(), line[42:]) for line in lines]
        return {(level, kernel): value for level, kernel, value in fields if level != "-"}

    return run


def bits(results: dict[tuple[str, str], str]) -> dict[str, str]:
    """The hash of each kernel of the portable level, which the program compares the others with."""
    return {kernel: value for (level, kernel), value in results.items() if level == "portable"}


@pytest.fixture(scope="module")
def bits_here(run_check: Run) -> dict[str, str]:
    found = bits(run_check(NATIVE_ARCHITECTURE, None))
    assert len(found) >= 20 and len(set(found.values())) >= 18
    return found


def test_every_level_of_this_processor_has_the_bits_of_the_portable_one(bits_here: dict[str, str]) -> None:
    assert "linear q4" in bits_here


@on_x86_64
@pytest.mark.parametrize(
    ("cpu", "levels"),
    [("Nehalem", ["portable"]), pytest.param("Haswell", ["avx2", "portable"], marks=pytest.mark.full)],
)
def test_f87_an_older_x86_processor_runs_only_what_it_has(
    run_check: Run, bits_here: dict[str, str], cpu: str, levels: list[str]
) -> None:
    assert bits(run_check("x86_64", cpu, levels)) == bits_here


@pytest.mark.full
@pytest.mark.parametrize(
    ("cpu", "levels"),
    [
        ("cortex-a72", ["neon", "portable"]),
        ("neoverse-n1", ["neon_dotprod", "neon", "portable"]),
        ("max", ["neon_i8mm", "neon_dotprod", "neon", "portable"]),
    ],
)
def test_arm_processors_have_the_bits_of_this_one(
    run_check: Run, bits_here: dict[str, str], cpu: str, levels: list[str]
) -> None:
    assert bits(run_check("aarch64", cpu, levels)) == bits_here


def test_a_wrong_level_fails_the_check(run_check: Run) -> None:
    with pytest.raises(AssertionError, match="1 failed"):
        run_check(NATIVE_ARCHITECTURE, None, ["mmx"])


@on_x86_64
@pytest.mark.parametrize("isa", ["avx2", "avx512_vnni", "neon"])
def test_f87_a_level_the_processor_lacks_is_refused_by_name(isa: str) -> None:
    """The whole command on an emulated processor of 2008, as a user of such a machine would meet it."""
    program = "import sys; from headrace.cli import main; sys.exit(main())"
    command = [emulator("x86_64"), "-cpu", "Nehalem", sys.executable, "-c", program, "doctor"]
    environment = {**os.environ, "HEADRACE_ISA": isa}
    done = subprocess.run(command, capture_output=True, text=True, env=environment)
    assert done.returncode == 1, done.stdout + done.stderr
    said = " ".join((done.stdout + done.stderr).split())
    assert f"isa '{isa}' is not available on this CPU (available: portable)" in said
