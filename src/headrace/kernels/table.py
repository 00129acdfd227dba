"""The op table: for every op its number, its faces and its numerics.

A new op needs a shape rule (graph/ops.py), a lowering (lowering.py), a reference face (reference/) and, to be fast,
a native face (native/). An op without a native face runs its reference and says so once.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

NORM_NUMERICS = {"class": "f32", "lanes": 16}
ROPE_NUMERICS = {"class": "f32", "table": "fixed double arithmetic, rounded once", "style": "neox"}
ATTENTION_NUMERICS = {"class": "f32", "tile_tokens": 64, "split_tokens": 256}
SAMPLE_NUMERICS = {"tile": 1024, "noise_bits": 32, "ties": "lowest id"}

KV_DTYPES = {"f32": 0, "bf16": 1}
"""`KvDtype` in native/include/plan.h."""

KV_ELEMENT_BYTES = {"f32": 4, "bf16": 2}


@dataclass(frozen=True, slots=True)
class OpEntry:
    """number: Op in native/include/plan.h. native: whether the C++ face exists. numerics: what fixes its bits."""

    number: int
    native: bool = True
    numerics: Mapping[str, Any] = field(default_factory=dict)


OP_TABLE: Mapping[str, OpEntry] = {
    "embed": OpEntry(1),
    "linear": OpEntry(2),
    "rms_norm": OpEntry(3, numerics=NORM_NUMERICS),
    "rope": OpEntry(4, numerics=ROPE_NUMERICS),
    "kv_store": OpEntry(5),
    "attention": OpEntry(6, numerics=ATTENTION_NUMERICS),
    "silu_mul": OpEntry(7, numerics={"class": "f32"}),
    "add": OpEntry(8, numerics={"class": "f32"}),
    "qkv_prepare": OpEntry(9),
    "tap": OpEntry(10),
    "gate": OpEntry(11),
    "sample": OpEntry(12, numerics=SAMPLE_NUMERICS),
}
