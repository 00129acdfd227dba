"""`python -m headrace.engine`: the engine process."""

from __future__ import annotations

import sys

from headrace.config.engine import EngineConfig
from headrace.engine.worker import Core, main


def make_core(config: EngineConfig) -> Core:
    """Loads the model. Imported here: everything heavy counts as start-up and its faults reach the server."""
    from headrace.engine.core import EngineCore

    return EngineCore(config)


if __name__ == "__main__":
    sys.exit(main(make_core))
