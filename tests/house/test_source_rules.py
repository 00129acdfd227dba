import ast
import re
from collections.abc import Callable
from pathlib import Path

import pytest

import headrace
from tests.house.source import ROOT, SOURCE, imported_names, python_files, tree, where

FORBIDDEN_MODULES = {"pickle", "marshal", "shelve", "dill", "cloudpickle"}
FORBIDDEN_CALLS = {"eval", "exec", "compile"}
MAX_LINES = 500
MAX_KERNEL_LINES = 800
MAX_FILES_IN_A_FOLDER = 12
EXPORTED = ["LLM", "AsyncLLM", "CompletionOutput", "EngineConfig", "HeadraceError", "RequestOutput", "SamplingParams"]


def own_files(*patterns: str) -> list[Path]:
    folders = ("src", "native", "tests", "docs", "benchmarks")
    return sorted({p for folder in folders for pattern in patterns for p in (ROOT / folder).rglob(pattern)})


def nodes(wanted: Callable[[ast.AST], bool]) -> list[str]:
    return [
        where(path, getattr(node, "lineno", 0))
        for path in python_files(SOURCE)
        for node in ast.walk(tree(path))
        if wanted(node)
    ]


def test_files_are_short() -> None:
    long = []
    for path in own_files("*.py", "*.cpp", "*.h"):
        limit = MAX_KERNEL_LINES if "native/kernels" in path.as_posix() else MAX_LINES
        count = len(path.read_text(encoding="utf-8").splitlines())
        if count > limit:
            long.append(f"{path.relative_to(ROOT)} has {count} lines, more than {limit}")
    assert long == []


def test_folders_are_small() -> None:
    crowded = []
    for folder in {path.parent for path in own_files("*.py", "*.cpp", "*.h")}:
        # A header and its source count once.
        stems = {p.stem for p in folder.iterdir() if p.suffix in (".py", ".cpp", ".h")} - {"__init__", "conftest"}
        if len(stems) > MAX_FILES_IN_A_FOLDER:
            crowded.append(f"{folder.relative_to(ROOT)} has {len(stems)} files")
    assert crowded == []


def test_every_package_says_what_it_owns() -> None:
    silent = []
    for path in SOURCE.rglob("__init__.py"):
        lines = (ast.get_docstring(tree(path)) or "").splitlines()
        enough = 2 if path.parent.parent == SOURCE else 1
        if not enough <= len(lines) <= 12:
            silent.append(str(path.relative_to(ROOT)))
    assert silent == []


def test_every_source_folder_is_a_package() -> None:
    folders = {path.parent for path in python_files(SOURCE)} | {path.parent for path in python_files(ROOT / "tests")}
    assert [str(f.relative_to(ROOT)) for f in sorted(folders) if not (f / "__init__.py").exists()] == []


def test_inputs_are_not_checked_by_assert() -> None:
    assert nodes(lambda node: isinstance(node, ast.Assert)) == []


def test_nothing_is_evaluated_or_unpickled() -> None:
    def evaluates(node: ast.AST) -> bool:
        return isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in FORBIDDEN_CALLS

    assert nodes(evaluates) == []
    wrong = [
        where(path, line)
        for path in python_files(SOURCE)
        for name, line in imported_names(path, tree(path))
        if name.split(".")[0] in FORBIDDEN_MODULES
    ]
    assert wrong == []


def test_there_is_no_global_statement() -> None:
    assert nodes(lambda node: isinstance(node, ast.Global)) == []


def test_no_module_is_called_utils() -> None:
    assert [p.name for p in python_files(SOURCE) if re.fullmatch(r"(utils?|helpers?|misc)\.py", p.name)] == []


@pytest.mark.parametrize(
    ("rule", "pattern"),
    [
        ("unfinished work is an issue, not a comment", r"\b(TODO|FIXME|XXX|HACK)\b"),
        ("no path of one machine", r"(?<![\w.])/(work|root)/"),
        ("no banner", r"^\s*(#|//)\s*[-=*#]{8,}"),
    ],
)
def test_text_rules(rule: str, pattern: str) -> None:
    found = []
    for path in own_files("*.py", "*.cpp", "*.h", "*.sh", "*.md"):
        if path == Path(__file__):
            continue
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), start=1):
            if re.search(pattern, line):
                found.append(where(path, number))
    assert found == [], rule


def test_the_exported_names_are_these() -> None:
    assert headrace.__all__ == EXPORTED


@pytest.mark.parametrize("name", EXPORTED)
def test_an_exported_name_is_there(name: str) -> None:
    assert getattr(headrace, name).__name__ == name


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="no attribute 'LLLM'"):
        headrace.LLLM  # noqa: B018


def test_the_version_is_that_of_the_project_file() -> None:
    project = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    assert f'version = "{headrace.__version__}"' in project
