"""Installers run without a shell, without input, for a limited time, and leave nothing running."""

from __future__ import annotations

import sys
import time
from pathlib import Path

import pytest

from headrace.weights.hub.spawn import run_installer


def run(scratch: Path, code: str, timeout_s: float = 20.0, **options: object) -> tuple[bool, str]:
    result = run_installer([sys.executable, "-c", code], scratch=scratch, timeout_s=timeout_s, **options)  # type: ignore[arg-type]
    return result.succeeded, result.output


def test_success_and_failure_carry_what_was_printed(tmp_path: Path) -> None:
    assert run(tmp_path, "print('fine')") == (True, "fine")
    succeeded, output = run(tmp_path, "import sys; print('x' * 5000); print('bad', file=sys.stderr); sys.exit(3)")
    assert not succeeded
    assert output.endswith("bad") and len(output) <= 600


def test_a_program_that_is_not_there_is_a_result_and_no_exception(tmp_path: Path) -> None:
    result = run_installer([str(tmp_path / "absent")], scratch=tmp_path, timeout_s=1.0)
    assert (result.succeeded, "No such file" in result.output) == (False, True)


def test_arguments_are_never_read_by_a_shell(tmp_path: Path) -> None:
    code = "import sys; print(sys.argv[1])"
    result = run_installer([sys.executable, "-c", code, "$(touch canary); `id`"], scratch=tmp_path, timeout_s=20.0)
    assert result.output == "$(touch canary); `id`"
    assert not (tmp_path / "canary").exists()


def test_the_environment_is_passed_on_and_temporary_files_stay_in_scratch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PIP_INDEX_URL", "from-the-user")
    _, output = run(tmp_path, "import os, tempfile; print(os.environ['PIP_INDEX_URL'], tempfile.gettempdir())")
    assert output == f"from-the-user {tmp_path}"
    assert run(tmp_path, "import sys; print(repr(sys.stdin.read()))") == (True, "''")


def test_the_time_limit_ends_it(tmp_path: Path) -> None:
    began = time.monotonic()
    assert run(tmp_path, "import time; time.sleep(60)", timeout_s=0.4) == (False, "no result after 0.4 s")
    assert time.monotonic() - began < 20


def test_an_exception_while_polling_ends_it_too(tmp_path: Path) -> None:
    def stop() -> None:
        raise KeyboardInterrupt

    began = time.monotonic()
    with pytest.raises(KeyboardInterrupt):
        run(tmp_path, "import time; time.sleep(60)", poll=stop)
    assert time.monotonic() - began < 20
