import re
import subprocess
import sys

import pytest

from tests.house.source import ROOT, SOURCE, imported_names, python_files, tree, where

TABLES = (ROOT / "docs" / "imports.md").read_text(encoding="utf-8")
TESTS_ONLY = {"torch", "transformers", "ml_dtypes", "gguf", "safetensors", "pytest", "hypothesis", "huggingface_hub"}
NATIVE_USERS = {"weights", "kernels", "sampling", "runner", "engine", "cli"}


def table(header: str) -> dict[str, list[str]]:
    """Package → cells of the second column, from the table of docs/imports.md whose second column has this name."""
    section = TABLES.split(f"| package | {header} |", 1)[1].split("\n\n", 1)[0]
    rows = re.findall(r"^\| (\w+) \| (.+?) \|$", section, flags=re.MULTILINE)
    return {package: [cell.strip() for cell in cells.split(",")] for package, cells in rows}


def allowed_imports() -> dict[str, set[str]]:
    out: dict[str, set[str]] = {}
    for package, cells in table("may import").items():
        out[package] = {package} | (set(out) if cells == ["all above"] else set(cells) - {"-"})
    return out


ALLOWED = allowed_imports()


def test_the_table_names_every_package_and_nothing_else() -> None:
    packages = {path.name for path in SOURCE.iterdir() if path.is_dir() and any(path.rglob("*.py"))}
    assert packages <= set(ALLOWED)
    assert set().union(*ALLOWED.values()) == set(ALLOWED)
    assert "server" not in ALLOWED["engine"]
    assert ALLOWED["core"] == {"core"}


@pytest.mark.parametrize("package", sorted(ALLOWED))
def test_a_package_imports_only_what_the_table_allows(package: str) -> None:
    wrong = []
    for path in python_files(SOURCE / package):
        for name, line in imported_names(path, tree(path)):
            parts = name.split(".")
            if parts[0] != "headrace" or parts[1:] in ([], ["__version__"]):
                continue
            allowed = package in NATIVE_USERS if parts[1] == "_native" else parts[1] in ALLOWED[package]
            if not allowed:
                wrong.append(f"{where(path, line)} imports {name}")
    assert wrong == []


def test_nothing_in_the_source_imports_a_library_of_the_tests() -> None:
    wrong = [
        f"{where(path, line)} imports {name}"
        for path in python_files(SOURCE)
        for name, line in imported_names(path, tree(path))
        if name.split(".")[0] in TESTS_ONLY
    ]
    assert wrong == []


@pytest.mark.parametrize("package", sorted(table("never imports")))
def test_packages_without_arrays_stay_without(package: str) -> None:
    banned = set(table("never imports")[package])
    wrong = [
        f"{where(path, line)} imports {name}"
        for path in python_files(SOURCE / package)
        for name, line in imported_names(path, tree(path))
        if name.split(".")[0] in banned
    ]
    assert wrong == []


@pytest.mark.parametrize(
    ("statement", "absent"),
    [
        ("import headrace", "numpy tokenizers starlette rich yaml jinja2 msgspec asyncio argparse"),
        ("import headrace.cli", "numpy tokenizers starlette rich yaml jinja2 msgspec asyncio"),
        ("import headrace.cli.app", "numpy tokenizers starlette uvicorn rich yaml jinja2 asyncio prometheus_client"),
        ("import headrace.config.engine, headrace.config.server", "numpy yaml msgspec asyncio"),
    ],
)
def test_imports_stay_light(statement: str, absent: str) -> None:
    code = f"import sys; {statement}; print(*sorted(set({absent.split()!r}) & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.split() == []
