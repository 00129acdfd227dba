"""The `headrace` command: serve, chat, generate, pull, plan, doctor.

Owns what is typed and what is printed; decides nothing about models or requests. May import every package; each
command imports what it needs when it runs, so that `headrace --help` answers at once.
"""

from __future__ import annotations

from collections.abc import Sequence

__all__ = ["main"]


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command (default: `sys.argv`'s); the exit status: 0, 1 for a failure, 2 for a usage error."""
    from headrace.cli.app import run

    return run(argv)
