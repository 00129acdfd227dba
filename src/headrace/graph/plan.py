"""Plan: the compiled form of a graph. Data only, so it can be printed, measured, hashed and compared."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from functools import cached_property
from typing import Any

from headrace.graph.ir import KvLayers, VectorSlot, WeightSlot


@dataclass(frozen=True, slots=True)
class BufferRef:
    """`offset_bytes` into a buffer that `bind` resolves: arena, weights, constants, taps or overlay."""

    buffer: str
    offset_bytes: int


@dataclass(frozen=True, slots=True)
class PackedWeight:
    """A slot's place and size in the weights buffer."""

    slot: WeightSlot | VectorSlot
    format: str
    offset_bytes: int
    size_bytes: int


@dataclass(frozen=True, slots=True)
class Constant:
    """A table computed at load, such as cos and sin of the rotary embedding."""

    name: str
    offset_bytes: int
    size_bytes: int


@dataclass(frozen=True, slots=True)
class PlanCall:
    """One call of a kernel.

    refs, dims, scalars and flags are the operands of native/include/plan.h; face is "cpu" or "reference".
    flops and traffic_bytes are per row of the step (token or logits row); weight_bytes once per step.
    """

    op: str
    label: str
    segment: str
    face: str
    refs: tuple[BufferRef | None, ...]
    dims: tuple[int, ...]
    scalars: tuple[float, ...]
    flags: int
    numerics: Mapping[str, Any]
    weight_bytes: int = 0
    flops: int = 0
    traffic_bytes: int = 0


@dataclass(frozen=True)
class Plan:
    """Everything a step does, in order.

    kv_dtype: how the KV cache stores keys and values, f32 or bf16.
    limits: max_num_batched_tokens, max_num_seqs, max_model_len, max_logits_rows that the arena was sized for.
    """

    model: str
    isa: str
    calls: tuple[PlanCall, ...]
    weights: tuple[PackedWeight, ...]
    constants: tuple[Constant, ...]
    taps: Mapping[str, BufferRef]
    kv_groups: tuple[KvLayers, ...]
    kv_dtype: str
    limits: Mapping[str, int]
    arena_bytes: int
    weights_bytes: int
    constants_bytes: int
    taps_bytes: int

    @cached_property
    def structure_id(self) -> str:
        """Hash of ops, shapes and kernels: equal plans do the same work."""
        calls = [[c.op, c.label, c.segment, c.face, c.dims, c.flags] for c in self.calls]
        slots = [[asdict(w.slot), w.format] for w in self.weights]
        return _digest([self.model, self.isa, dict(self.limits), calls, slots])

    @cached_property
    def numerics_id(self) -> str:
        """Hash of everything that can change a bit: equal numerics_id, equal bits."""
        calls = [[c.op, c.label, c.scalars, dict(c.numerics)] for c in self.calls]
        slots = [[asdict(w.slot), w.format] for w in self.weights]
        return _digest([self.model, calls, slots])

    @property
    def segments(self) -> dict[str, tuple[int, int]]:
        """Segment → (first call, one past the last)."""
        out: dict[str, tuple[int, int]] = {}
        for i, call in enumerate(self.calls):
            first, _ = out.get(call.segment, (i, i))
            out[call.segment] = (first, i + 1)
        return out

    def rows(self) -> list[dict[str, Any]]:
        """The plan as a table: one dictionary a call."""
        return [
            {
                "call": i,
                "segment": c.segment,
                "op": c.op,
                "label": c.label,
                "face": c.face,
                "isa": self.isa if c.face == "cpu" else "numpy",
                "dims": list(c.dims),
                "flags": c.flags,
                "weight_bytes": c.weight_bytes,
                "flops_per_row": c.flops,
                "traffic_bytes_per_row": c.traffic_bytes,
                "numerics": dict(c.numerics),
            }
            for i, c in enumerate(self.calls)
        ]

    def to_dict(self) -> dict[str, Any]:
        return {
            "model": self.model,
            "isa": self.isa,
            "structure_id": self.structure_id,
            "numerics_id": self.numerics_id,
            "kv_dtype": self.kv_dtype,
            "limits": dict(self.limits),
            "arena_bytes": self.arena_bytes,
            "weights_bytes": self.weights_bytes,
            "constants_bytes": self.constants_bytes,
            "taps_bytes": self.taps_bytes,
            "calls": self.rows(),
            "weights": [
                {"name": w.slot.name, "format": w.format, "size_bytes": w.size_bytes, "parts": _parts(w.slot)}
                for w in self.weights
            ],
        }


def diff(a: Mapping[str, Any], b: Mapping[str, Any]) -> list[str]:
    """What changed from plan `a` to plan `b`, as sentences. Both are `Plan.to_dict()` values (or parsed JSON)."""
    out = []
    for key in ("model", "isa", "arena_bytes", "weights_bytes", "constants_bytes", "taps_bytes"):
        if a[key] != b[key]:
            out.append(f"{key}: {a[key]} → {b[key]}")
    for name in sorted(a["limits"].keys() | b["limits"].keys()):
        if a["limits"].get(name) != b["limits"].get(name):
            out.append(f"limit {name}: {a['limits'].get(name)} → {b['limits'].get(name)}")
    out += _diff_rows("call", a["calls"], b["calls"], "label", ("op", "face", "isa", "dims", "flags", "numerics"))
    out += _diff_rows("weight", a["weights"], b["weights"], "name", ("format", "size_bytes", "parts"))
    if a["numerics_id"] != b["numerics_id"]:
        out.append(f"numerics_id: {a['numerics_id']} → {b['numerics_id']} (results may differ)")
    return out


def _diff_rows(kind: str, a: list[Any], b: list[Any], key: str, fields: tuple[str, ...]) -> list[str]:
    old, new = _numbered(a, key), _numbered(b, key)
    out = [f"{kind} {name}: removed" for name in old if name not in new]
    out += [f"{kind} {name}: added" for name in new if name not in old]
    for name in old:
        for f in fields if name in new else ():
            if old[name][f] != new[name][f]:
                out.append(f"{kind} {name}: {f} {old[name][f]} → {new[name][f]}")
    return out


def _numbered(rows: list[Any], key: str) -> dict[str, Any]:
    """Rows by name; a repeated name gets a running number."""
    out: dict[str, Any] = {}
    for row in rows:
        name, n = row[key], 2
        while name in out:
            name, n = f"{row[key]}#{n}", n + 1
        out[name] = row
    return out


def _parts(slot: WeightSlot | VectorSlot) -> list[list[Any]]:
    return [[p.logical, p.num_outputs, p.first_block, p.block_step] for p in slot.parts]


def _digest(value: Any) -> str:
    text = json.dumps(value, sort_keys=True, separators=(",", ":"), default=str)
    return hashlib.sha256(text.encode()).hexdigest()[:16]
