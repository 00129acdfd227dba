"""Lowering: graph → Plan. Fixes offsets, operands and the kernel of every op."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from headrace.graph.ir import Graph, Node, Rows, VectorSlot, View, WeightSlot
from headrace.graph.passes.place import ELEMENT_BYTES, Placement, place
from headrace.graph.plan import BufferRef, Constant, PackedWeight, Plan, PlanCall
from headrace.kernels.formats import ARITHMETIC
from headrace.kernels.table import KV_ELEMENT_BYTES, OP_TABLE
from headrace.weights.packed import PackedFormat, packed_nbytes

ALIGNMENT_BYTES = 64
LINEAR_RESIDUAL, LINEAR_SILU_MUL, LINEAR_LOGITS_ROWS = 1, 2, 4
ROPE_TABLE = "rope_table"


@dataclass(frozen=True, slots=True)
class Limits:
    """What the arena, row state and tables are sized for. All counts."""

    max_num_batched_tokens: int
    max_num_seqs: int
    max_model_len: int
    max_logits_rows: int


@dataclass
class _Lowering:
    graph: Graph
    placement: Placement
    formats: Mapping[str, str]
    rounded: Mapping[str, str]
    limits: Limits
    kv_dtype: str
    weights: dict[str, PackedWeight] = field(default_factory=dict)
    weights_bytes: int = 0
    taps: dict[str, BufferRef] = field(default_factory=dict)
    taps_bytes: int = 0

    def ref(self, view: View) -> BufferRef:
        return BufferRef("arena", self.placement.offsets[view.value] + view.offset * ELEMENT_BYTES)

    def stride(self, view: View) -> int:
        return self.graph.values[view.value].width

    def slot(self, slot: WeightSlot | VectorSlot) -> PackedWeight:
        """The slot's place in the weights buffer; a slot named twice (a tied head) has one place."""
        known = self.weights.get(slot.name)
        if known is not None:
            return known
        if isinstance(slot, VectorSlot):
            fmt, size = "f32", slot.width * ELEMENT_BYTES
        else:
            fmt = self.formats[slot.parts[0].logical]
            size = packed_nbytes(PackedFormat[fmt.upper()], slot.num_outputs, slot.num_inputs)
        packed = PackedWeight(slot, fmt, self.weights_bytes, size)
        self.weights[slot.name] = packed
        self.weights_bytes += _align(size)
        return packed

    def weight_ref(self, slot: WeightSlot | VectorSlot) -> BufferRef:
        return BufferRef("weights", self.slot(slot).offset_bytes)

    def weight_numerics(self, slot: WeightSlot) -> dict[str, str]:
        """What decides the values of the slot's weights."""
        sources = sorted({self.rounded[part.logical] for part in slot.parts if part.logical in self.rounded})
        return {"format": self.slot(slot).format} | ({"quantised_from": ", ".join(sources)} if sources else {})

    def vector(self, node: Node, name: str) -> BufferRef | None:
        return self.weight_ref(node.vectors[name]) if name in node.vectors else None

    def tap(self, name: str, width: int) -> BufferRef:
        ref = self.taps[name] = BufferRef("taps", self.taps_bytes)
        self.taps_bytes += _align(self.limits.max_num_seqs * width * ELEMENT_BYTES)
        return ref


def lower(
    graph: Graph,
    *,
    model: str,
    formats: Mapping[str, str],
    limits: Limits,
    rotary_dim: int,
    isa: str,
    kv_dtype: str = "f32",
    reference_ops: frozenset[str] = frozenset(),
    rounded: Mapping[str, str] | None = None,
) -> Plan:
    """Compile a graph.

    formats: logical matrix → packed format. rounded: of those packed with loss, the type in the file.
    isa: the native level the plan will run on, or "reference" for the NumPy faces. kv_dtype: f32 or bf16.
    reference_ops: ops that run their reference face although they have a native one.
    Raises UnsupportedModelError through the op rules when a node cannot be run.
    """
    rows: dict[Rows, int] = {"tokens": limits.max_num_batched_tokens, "logits": limits.max_logits_rows}
    rope_bytes = limits.max_model_len * rotary_dim * ELEMENT_BYTES
    low = _Lowering(graph, place(graph, rows), formats, rounded or {}, limits, kv_dtype)
    segment, calls = "forward", []
    for node in graph.nodes:
        entry = OP_TABLE[node.op]
        native = entry.native and isa != "reference" and node.op not in reference_ops
        face = "cpu" if native else "reference"
        call = _LOWER[node.op](low, node)
        if node.op == "gate":
            segment = {"forward": "logits", "mask": "sample"}.get(node.attrs["name"], segment)
        calls.append(PlanCall(op=node.op, label=node.label, segment=segment, face=face, **call))
    return Plan(
        model=model,
        isa=isa,
        calls=tuple(calls),
        weights=tuple(low.weights.values()),
        constants=(Constant(ROPE_TABLE, 0, rope_bytes),),
        taps=low.taps,
        kv_groups=graph.kv_groups,
        kv_dtype=kv_dtype,
        limits={name: getattr(limits, name) for name in Limits.__slots__},
        arena_bytes=low.placement.arena_bytes,
        weights_bytes=low.weights_bytes,
        constants_bytes=rope_bytes,
        taps_bytes=low.taps_bytes,
    )


def _operands(
    refs: tuple[BufferRef | None, ...] = (),
    dims: tuple[int, ...] = (),
    scalars: tuple[float, ...] = (),
    flags: int = 0,
    numerics: Mapping[str, Any] | None = None,
    **cost: int,
) -> dict[str, Any]:
    return {"refs": refs, "dims": dims, "scalars": scalars, "flags": flags, "numerics": numerics or {}, **cost}


def _embed(low: _Lowering, node: Node) -> dict[str, Any]:
    slot, out = _weight(node), _out(node)
    packed = low.slot(slot)
    return _operands(
        (low.weight_ref(slot), low.ref(out), BufferRef("overlay", 0)),
        (slot.num_outputs, slot.num_inputs, PackedFormat[packed.format.upper()].value),
        numerics=low.weight_numerics(slot),
        traffic_bytes=packed.size_bytes // slot.num_outputs,
    )


def _linear(low: _Lowering, node: Node) -> dict[str, Any]:
    slot, out, x = _weight(node), _out(node), node.inputs[0]
    packed = low.slot(slot)
    flags = LINEAR_RESIDUAL * bool(node.attrs.get("residual")) | LINEAR_SILU_MUL * bool(node.attrs.get("silu_mul"))
    flags |= LINEAR_LOGITS_ROWS * bool(node.attrs.get("logits_rows"))
    numerics = {
        **ARITHMETIC[PackedFormat[packed.format.upper()]],
        **low.weight_numerics(slot),
        "k_segments": node.attrs["k_segments"],
    }
    if "norm" in node.vectors:
        numerics["norm"] = OP_TABLE["rms_norm"].numerics
    return _operands(
        (
            low.ref(x),
            low.ref(out),
            low.weight_ref(slot),
            low.vector(node, "norm"),
            low.vector(node, "bias"),
        ),
        (
            slot.num_outputs,
            slot.num_inputs,
            PackedFormat[packed.format.upper()].value,
            low.stride(x),
            low.stride(out),
            node.attrs["k_segments"],
        ),
        (node.attrs.get("eps", 0.0),),
        flags,
        numerics,
        weight_bytes=packed.size_bytes,
        flops=2 * slot.num_outputs * slot.num_inputs,
        traffic_bytes=ELEMENT_BYTES * (x.width + out.width),
    )


def _rms_norm(low: _Lowering, node: Node) -> dict[str, Any]:
    x, out, width = node.inputs[0], _out(node), node.vectors["norm"].width
    return _operands(
        (low.ref(x), low.ref(out), low.vector(node, "norm")),
        (width, x.width // width, low.stride(x), low.stride(out)),
        (node.attrs["eps"],),
        numerics=OP_TABLE["rms_norm"].numerics,
        traffic_bytes=2 * ELEMENT_BYTES * x.width,
    )


def _rope(low: _Lowering, node: Node) -> dict[str, Any]:
    x, a = node.inputs[0], node.attrs
    return _operands(
        (low.ref(x), BufferRef("constants", 0)),
        (x.width // a["head_dim"], a["head_dim"], a["rotary_dim"], low.stride(x)),
        numerics=OP_TABLE["rope"].numerics,
        traffic_bytes=2 * ELEMENT_BYTES * x.width,
    )


def _kv_store(low: _Lowering, node: Node) -> dict[str, Any]:
    (k, v), a = node.inputs, node.attrs
    return _operands(
        (low.ref(k), low.ref(v)),
        (a["group"], a["layer"], a["num_kv_heads"], a["head_dim"], low.stride(k), low.stride(v)),
        numerics={"kv": low.kv_dtype},
        traffic_bytes=2 * (ELEMENT_BYTES + KV_ELEMENT_BYTES[low.kv_dtype]) * k.width,
    )


def _attention(low: _Lowering, node: Node) -> dict[str, Any]:
    q, out, a = node.inputs[0], _out(node), node.attrs
    return _operands(
        (low.ref(q), low.ref(out)),
        (
            a["group"],
            a["layer"],
            a["num_heads"],
            a["num_kv_heads"],
            a["head_dim"],
            low.stride(q),
            low.stride(out),
        ),
        (a["scale"],),
        numerics={**OP_TABLE["attention"].numerics, "kv": low.kv_dtype},
        traffic_bytes=2 * ELEMENT_BYTES * q.width,
    )


def _qkv_prepare(low: _Lowering, node: Node) -> dict[str, Any]:
    x, a = node.inputs[0], node.attrs
    return _operands(
        (low.ref(x), BufferRef("constants", 0), low.vector(node, "q_norm"), low.vector(node, "k_norm")),
        (
            a["group"],
            a["layer"],
            a["num_heads"],
            a["num_kv_heads"],
            a["head_dim"],
            a["rotary_dim"],
            low.stride(x),
        ),
        (a["eps"],),
        numerics={"rope": OP_TABLE["rope"].numerics, "kv": low.kv_dtype, "norm": OP_TABLE["rms_norm"].numerics},
        traffic_bytes=3 * ELEMENT_BYTES * x.width,
    )


def _elementwise(low: _Lowering, node: Node) -> dict[str, Any]:
    (a, b), out = node.inputs, _out(node)
    return _operands(
        (low.ref(a), low.ref(b), low.ref(out)),
        (out.width, low.stride(a), low.stride(b), low.stride(out)),
        numerics=OP_TABLE[node.op].numerics,
        traffic_bytes=3 * ELEMENT_BYTES * out.width,
    )


def _tap(low: _Lowering, node: Node) -> dict[str, Any]:
    x = node.inputs[0]
    return _operands((low.ref(x), low.tap(node.attrs["name"], x.width)), (x.width, low.stride(x)))


def _gate(_: _Lowering, node: Node) -> dict[str, Any]:
    return _operands((), (node.attrs["index"],))


def _sample(low: _Lowering, node: Node) -> dict[str, Any]:
    x = node.inputs[0]
    return _operands(
        (low.ref(x),),
        (x.width,),
        numerics=OP_TABLE["sample"].numerics,
        traffic_bytes=ELEMENT_BYTES * x.width,
    )


_LOWER: dict[str, Callable[[_Lowering, Node], dict[str, Any]]] = {
    "embed": _embed,
    "linear": _linear,
    "rms_norm": _rms_norm,
    "rope": _rope,
    "kv_store": _kv_store,
    "attention": _attention,
    "silu_mul": _elementwise,
    "add": _elementwise,
    "qkv_prepare": _qkv_prepare,
    "tap": _tap,
    "gate": _gate,
    "sample": _sample,
}


def _weight(node: Node) -> WeightSlot:
    if node.weight is None:
        raise ValueError(f"{node.label}: no weight")
    return node.weight


def _out(node: Node) -> View:
    if node.output is None:
        raise ValueError(f"{node.label}: no output")
    return node.output


def _align(size_bytes: int) -> int:
    return -(-size_bytes // ALIGNMENT_BYTES) * ALIGNMENT_BYTES
