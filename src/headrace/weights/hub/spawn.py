"""The one place in weights that starts a program: the user's package installer."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

POLL_INTERVAL_S = 0.2
OUTPUT_TAIL_CHARS = 600


@dataclass(frozen=True, slots=True)
class InstallerResult:
    """How an installer ended. `output` is the end of what it printed, or why it could not start."""

    succeeded: bool
    output: str


def run_installer(
    command: Sequence[str], *, scratch: Path, timeout_s: float, poll: Callable[[], None] | None = None
) -> InstallerResult:
    """Runs an installer command to its end, without a shell and without input, temporary files under `scratch`.

    The user's environment is passed on, so that index, mirror, proxy and certificate settings hold. `poll` is called
    a few times a second while it runs. The program is killed at the time limit and when `poll` raises.
    """
    log = scratch / "installer.log"
    environment = os.environ | {"TMPDIR": str(scratch), "PIP_NO_INPUT": "1", "PYTHONWARNINGS": "ignore"}
    try:
        with log.open("wb") as output:
            process = subprocess.Popen(
                list(command),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                env=environment,
                cwd=scratch,
            )
    except OSError as error:
        return InstallerResult(False, f"{command[0]}: {error.strerror or error}")
    waited_s = 0.0
    try:
        while process.poll() is None:
            try:
                process.wait(POLL_INTERVAL_S)
            except subprocess.TimeoutExpired:
                waited_s += POLL_INTERVAL_S
                if waited_s >= timeout_s:
                    return InstallerResult(False, f"no result after {timeout_s:g} s")
                if poll is not None:
                    poll()
    finally:
        if process.poll() is None:
            process.kill()
            process.wait()
    text = log.read_bytes()[-4 * OUTPUT_TAIL_CHARS :].decode("utf-8", "replace").strip()
    return InstallerResult(process.returncode == 0, text[-OUTPUT_TAIL_CHARS:])
