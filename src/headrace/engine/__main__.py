"""`python -m headrace.engine`: the engine process."""

from __future__ import annotations

import sys

from headrace.config.engine import EngineConfig
from headrace.core.garbage import pause_collection
from headrace.engine.worker import Core, began_s, main
from headrace.observe.timeline import Timeline


def run() -> int:
    """The process from its first line to its exit status."""
    pause_collection()
    timeline = Timeline(began_s())
    timeline.end("interpreter")

    def preload() -> None:
        """Everything heavy, imported here: its faults reach the server."""
        from headrace.engine import core  # noqa: F401  it is the import that counts

        timeline.end("imports")

    def make_core(config: EngineConfig) -> Core:
        from headrace.engine.core import EngineCore

        timeline.end("options")
        return EngineCore(config, timeline=timeline)

    return main(make_core, preload)


if __name__ == "__main__":
    sys.exit(run())
