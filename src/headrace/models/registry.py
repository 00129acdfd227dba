"""Which family builds which architecture."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import cast

from headrace.config.model_config import ModelConfig
from headrace.core.errors import UnsupportedModelError, nearest
from headrace.graph.ir import Graph

FAMILIES: tuple[str, ...] = ("llama", "qwen2", "qwen3")


def build_graph(config: ModelConfig) -> Graph:
    """The model's graph. Raises UnsupportedModelError naming the nearest supported family."""
    if config.architecture not in FAMILIES:
        guess = nearest(config.architecture, FAMILIES)
        raise UnsupportedModelError(
            f"architecture {config.architecture!r} is not supported"
            + (f"; the nearest supported one is {guess!r}" if guess else "")
            + f" (supported: {', '.join(FAMILIES)})"
        )
    family = importlib.import_module(f"headrace.models.{config.architecture}")
    return cast(Callable[[ModelConfig], Graph], family.build)(config)
