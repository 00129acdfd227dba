"""headrace: an LLM inference and serving engine.

The folders read as the path of a request; start with docs/path-of-a-request.md.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

__all__ = ["LLM", "AsyncLLM", "CompletionOutput", "EngineConfig", "HeadraceError", "RequestOutput", "SamplingParams"]

_HOMES = {
    "LLM": "headrace.engine.llm",
    "AsyncLLM": "headrace.engine.async_llm",
    "CompletionOutput": "headrace.core.outputs",
    "RequestOutput": "headrace.core.outputs",
    "EngineConfig": "headrace.config.engine",
    "HeadraceError": "headrace.core.errors",
    "SamplingParams": "headrace.core.params",
}

if TYPE_CHECKING:
    from headrace.config.engine import EngineConfig
    from headrace.core.errors import HeadraceError
    from headrace.core.outputs import CompletionOutput, RequestOutput
    from headrace.core.params import SamplingParams
    from headrace.engine.async_llm import AsyncLLM
    from headrace.engine.llm import LLM


def __getattr__(name: str) -> Any:
    """Import an exported name when it is first used, so that `import headrace` costs nothing."""
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module 'headrace' has no attribute {name!r}")
    return getattr(importlib.import_module(home), name)
