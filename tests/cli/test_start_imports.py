"""What `headrace serve` imports before it is ready, process by process. Whoever adds to it makes every start slower."""

from __future__ import annotations

import subprocess
import sys

import pytest

PROCESSES = {
    "server": (
        "import headrace.cli.app, headrace.cli.arguments, headrace.cli.commands.serve, headrace.server.launch.serve\n"
        "import headrace.engine.async_llm, headrace.engine.process.child, headrace.engine.process.remote\n"
        "import headrace.server.app, headrace.server.launch.web, headrace.server.launch.banner\n"
        "import headrace.weights.text_source, headrace.text.tokenizer_files.gguf, tokenizers\n",
        {"anyio", "click", "h11", "idna", "msgspec", "sniffio", "starlette"}
        | {"tokenizers", "typing_extensions", "uvicorn"},
        {"numpy", "jinja2", "markupsafe", "rich", "yaml", "huggingface_hub"},
    ),
    "engine": (
        "import headrace.engine.__main__, headrace.engine.core, headrace.engine.worker\n",
        {"msgspec", "numpy", "typing_extensions"},
        {"asyncio", "argparse", "jinja2", "tokenizers", "starlette", "uvicorn", "h11", "click", "subprocess"},
    ),
}


def modules_after(code: str) -> set[str]:
    """Top-level modules that are loaded once `code` has run."""
    code += "import sys; print(*{name.partition('.')[0] for name in sys.modules})"
    return set(subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split())


@pytest.mark.parametrize("process", PROCESSES)
def test_a_starting_process_imports_these_libraries_and_no_others(process: str) -> None:
    code, libraries, absent = PROCESSES[process]
    loaded = modules_after(code)
    at_home = sys.stdlib_module_names | {"headrace", "__main__", "__mp_main__", "sitecustomize"}
    # What a bare interpreter of this environment has loaded is not ours to answer for.
    ours = loaded - modules_after("")
    assert {name for name in ours if name not in at_home and not name.startswith("_")} <= libraries
    assert absent.isdisjoint(ours)
