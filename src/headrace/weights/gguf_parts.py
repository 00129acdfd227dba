"""Split GGUF models: `NAME-00001-of-00003.gguf` and its siblings, as llama.cpp's gguf-split writes them."""

from __future__ import annotations

import re
from pathlib import Path

from headrace.core.errors import ModelFileError
from headrace.weights.gguf import MAGIC, GGUFFile

_PART_NAME = re.compile(r"(?P<stem>.+)-(?P<number>\d{5})-of-(?P<count>\d{5})\.gguf")
MAX_PARTS = 512


def open_parts(path: Path) -> list[GGUFFile]:
    """The file, or all parts of the split model that it belongs to, first part (which holds the metadata) first.

    Raises ModelFileError naming what is wrong: a part missing, a part of another model, parts joined with cat.
    """
    opened = GGUFFile(path)
    count = opened.metadata.get("split.count", 0)
    _refuse_joined(opened, count)
    if not isinstance(count, int) or count <= 1:
        return [opened]
    if count > MAX_PARTS:
        raise ModelFileError(f"{path}: metadata key 'split.count' says {count} parts, at most {MAX_PARTS} are read")
    name = _PART_NAME.fullmatch(path.name)
    if name is None or int(name["count"]) != count:
        raise ModelFileError(
            f"{path}: it is part {_number(opened)} of {count}; parts are found by their names, "
            f"NAME-00001-of-{count:05d}.gguf and so on: give it its name back"
        )
    parts = []
    for number in range(1, count + 1):
        sibling = path.with_name(f"{name['stem']}-{number:05d}-of-{count:05d}.gguf")
        if not sibling.exists():
            raise ModelFileError(f"{path}: part {number} of {count} is missing: {sibling.name}")
        part = opened if sibling == path else GGUFFile(sibling)
        _refuse_joined(part, count)
        if part.metadata.get("split.count") != count or _number(part) != number:
            raise ModelFileError(
                f"{sibling}: its metadata says part {_number(part)} of {part.metadata.get('split.count')}, "
                f"its name says part {number} of {count}"
            )
        parts.append(part)
    total = parts[0].metadata.get("split.tensors.count")
    found = sum(len(p.tensors) for p in parts)
    for part in parts:
        claimed = part.metadata.get("split.tensors.count")
        if claimed != total:
            raise ModelFileError(f"{part.path}: is a part of a model of {claimed} tensors, part 1 of one of {total}")
    if isinstance(total, int) and total != found:
        raise ModelFileError(f"{path}: the parts hold {found} tensors together, part 1 says {total}")
    return parts


def _number(part: GGUFFile) -> int | None:
    index = part.metadata.get("split.no")
    return index + 1 if isinstance(index, int) else None


def _refuse_joined(part: GGUFFile, count: object) -> None:
    """Parts joined with `cat` look like the first part with another GGUF file behind its last tensor."""
    end = -(-part.end_offset // part.alignment) * part.alignment
    if any(start + 4 <= part.file.size_bytes and part.file.read(start, 4) == MAGIC for start in {part.end_offset, end}):
        raise ModelFileError(
            f"{part.path}: another GGUF file begins at byte {end}: parts joined with cat"
            + (f" (it says {count} parts)" if count else "")
            + "; join them with `llama-gguf-split --merge`, or give headrace the parts"
        )
