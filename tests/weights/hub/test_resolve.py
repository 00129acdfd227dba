"""A model's name leads to one path, or to an error that says what to type."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from headrace.core.errors import ConfigError, ModelFileError
from headrace.weights.hub import resolve_model
from headrace.weights.hub.cache import cache_dir
from headrace.weights.hub.resolve import hub_cache_dir

COMMIT = "a" * 40


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """A Hugging Face cache with one revision of org/name, as huggingface_hub lays it out."""
    for name in ("HF_HUB_CACHE", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HF_HOME", str(tmp_path / "hf"))
    repository = tmp_path / "hf" / "hub" / "models--org--name"
    (repository / "blobs").mkdir(parents=True)
    (repository / "blobs" / "1").write_text(json.dumps({}))
    (repository / "snapshots" / COMMIT).mkdir(parents=True)
    (repository / "snapshots" / COMMIT / "config.json").symlink_to("../../blobs/1")
    (repository / "refs" / "pr").mkdir(parents=True)
    (repository / "refs" / "main").write_text(COMMIT)
    (repository / "refs" / "pr" / "1").write_text(COMMIT + "\n")
    return repository


def test_ids_are_found_in_the_hugging_face_cache_by_branch_tag_and_commit(hub: Path) -> None:
    snapshot = hub / "snapshots" / COMMIT
    assert resolve_model("org/name") == snapshot
    assert resolve_model("org/name", revision="pr/1") == snapshot
    assert resolve_model("org/name", revision=COMMIT) == snapshot


def test_what_is_not_in_the_cache_says_how_to_fetch_it(hub: Path) -> None:
    with pytest.raises(ConfigError, match=r"'org/other' is not in the Hugging Face cache .* hf download org/other$"):
        resolve_model("org/other")
    with pytest.raises(ConfigError, match=rf"revision 'v2' is not .*; there: {COMMIT}; .* --revision v2$") as raised:
        resolve_model("org/name", revision="v2")
    assert raised.value.param == "revision"
    (hub / "refs" / "main").write_text("../../../elsewhere")
    with pytest.raises(ConfigError, match="revision 'main' is not in"):
        resolve_model("org/name")


@pytest.mark.parametrize("revision", ["..", "../../x", "a/../b", "/abs", "", "a b", ".hidden"])
def test_revisions_cannot_climb_out_of_the_cache(hub: Path, revision: str) -> None:
    if revision == "":
        assert resolve_model("org/name", revision=revision) == hub / "snapshots" / COMMIT
        return
    with pytest.raises(ConfigError, match="is no branch, tag or commit"):
        resolve_model("org/name", revision=revision)


def test_cache_folders_follow_their_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("HF_HUB_CACHE", "HF_HOME", "XDG_CACHE_HOME", "HEADRACE_CACHE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", "/home/x")
    assert (hub_cache_dir(), cache_dir()) == (Path("/home/x/.cache/huggingface/hub"), Path("/home/x/.cache/headrace"))
    monkeypatch.setenv("XDG_CACHE_HOME", "/xdg")
    assert (hub_cache_dir(), cache_dir()) == (Path("/xdg/huggingface/hub"), Path("/xdg/headrace"))
    monkeypatch.setenv("HF_HOME", "/hf")
    monkeypatch.setenv("HEADRACE_CACHE", "~/own")
    assert (hub_cache_dir(), cache_dir()) == (Path("/hf/hub"), Path("/home/x/own"))
    monkeypatch.setenv("HF_HUB_CACHE", "/hub")
    assert hub_cache_dir() == Path("/hub")


def test_files_and_folders_are_taken_as_they_are(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "model.gguf"
    file.write_bytes(b"GGUF")
    folder = tmp_path / "org" / "name"
    folder.mkdir(parents=True)
    (folder / "config.json").write_text("{}")
    assert resolve_model(str(file)) == file
    assert resolve_model(str(folder)) == folder
    monkeypatch.chdir(tmp_path)
    assert resolve_model("org/name") == Path("org/name")  # a folder wins over an id


def test_a_folder_with_one_gguf_model_stands_for_it(tmp_path: Path) -> None:
    with pytest.raises(ModelFileError, match=r"neither a config.json nor a .gguf file"):
        resolve_model(str(tmp_path))
    for number in (1, 2):
        (tmp_path / f"m-0000{number}-of-00002.gguf").write_bytes(b"GGUF")
    assert resolve_model(str(tmp_path)).name == "m-00001-of-00002.gguf"
    (tmp_path / "other.gguf").write_bytes(b"GGUF")
    with pytest.raises(ConfigError, match=r"holds several GGUF models, name one: other.gguf, m-00001"):
        resolve_model(str(tmp_path))
    (tmp_path / "other.gguf").unlink()
    (tmp_path / "m-00001-of-00002.gguf").unlink()
    with pytest.raises(ModelFileError, match="part 1 of the split GGUF model is missing"):
        resolve_model(str(tmp_path))


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("smolm2", "did you mean 'smollm2'"),
        ("", "name is empty"),
        ("./absent.gguf", "no such file or folder"),
        ("absent.gguf", "no such file or folder"),
        ("/absent", "no such file or folder"),
        ("what is this", "give 'smollm2'"),
        ("a/b/c", "give 'smollm2'"),
        ("../x/y", "no such file or folder"),
    ],
)
def test_names_that_lead_nowhere_say_what_would(name: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        resolve_model(name)


def test_a_revision_is_refused_where_it_means_nothing(tmp_path: Path) -> None:
    (tmp_path / "m.gguf").write_bytes(b"GGUF")
    for name in ("smollm2", str(tmp_path / "m.gguf"), str(tmp_path)):
        with pytest.raises(ConfigError, match="a revision is for org/name"):
            resolve_model(name, revision="main")
