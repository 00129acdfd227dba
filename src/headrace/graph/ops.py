"""The ops a graph may hold: their attributes and shape rules. Meaning lives in kernels/reference."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from headrace.core.errors import UnsupportedModelError
from headrace.graph.ir import Node


@dataclass(frozen=True, slots=True)
class OpRule:
    """What a node of this op must look like. `check` raises UnsupportedModelError."""

    name: str
    num_inputs: int
    attrs: frozenset[str]
    check: Callable[[Node], None]


def _require(ok: bool, node: Node, what: str) -> None:
    if not ok:
        raise UnsupportedModelError(f"{node.label}: {node.op} needs {what}")


def _embed(node: Node) -> None:
    _require(node.weight is not None and node.output is not None, node, "a weight and an output")


def _linear(node: Node) -> None:
    weight, out = node.weight, node.output
    if weight is None or out is None:
        raise UnsupportedModelError(f"{node.label}: linear needs a weight and an output")
    _require(node.inputs[0].width == weight.num_inputs, node, f"an input of width {weight.num_inputs}")
    width = weight.num_outputs // 2 if node.attrs.get("silu_mul") else weight.num_outputs
    _require(out.width == width, node, f"an output of width {width}")
    segments = node.attrs["k_segments"]
    _require(weight.num_inputs % segments == 0, node, "k_segments that divide the inputs")


def _same_width(node: Node) -> None:
    _require(node.output is not None and all(v.width == node.output.width for v in node.inputs), node, "equal widths")


def _rms_norm(node: Node) -> None:
    _same_width(node)
    vector = node.vectors.get("norm")
    _require(vector is not None and node.inputs[0].width % vector.width == 0, node, "a norm weight dividing the width")


def _rope(node: Node) -> None:
    _require(node.inputs[0] == node.output, node, "to work in place")
    _require(node.inputs[0].width % node.attrs["head_dim"] == 0, node, "whole heads")


def _kv_store(node: Node) -> None:
    k, v = node.inputs
    _require(k.width == v.width == node.attrs["num_kv_heads"] * node.attrs["head_dim"], node, "K and V of all KV heads")


def _attention(node: Node) -> None:
    a = node.attrs
    _require(a["num_heads"] % a["num_kv_heads"] == 0, node, "query heads in whole groups")
    _require(node.inputs[0].width == a["num_heads"] * a["head_dim"], node, "q of all heads")
    _same_width(node)


def _qkv_prepare(node: Node) -> None:
    a = node.attrs
    width = (a["num_heads"] + 2 * a["num_kv_heads"]) * a["head_dim"]
    _require(
        node.inputs[0].width == width and node.inputs[0] == node.output, node, f"a q, k, v buffer of width {width}"
    )


def _one_input(node: Node) -> None:
    _require(len(node.inputs) == 1, node, "one input")


def _no_input(node: Node) -> None:
    _require(not node.inputs and node.output is None, node, "no input and no output")


_KV = frozenset({"group", "layer", "num_kv_heads", "head_dim"})

OPS: dict[str, OpRule] = {
    rule.name: rule
    for rule in (
        OpRule("embed", 0, frozenset(), _embed),
        OpRule("linear", 1, frozenset({"k_segments", "eps", "residual", "silu_mul", "logits_rows"}), _linear),
        OpRule("rms_norm", 1, frozenset({"eps"}), _rms_norm),
        OpRule("rope", 1, frozenset({"head_dim", "rotary_dim"}), _rope),
        OpRule("kv_store", 2, _KV, _kv_store),
        OpRule("attention", 1, _KV | {"num_heads", "scale"}, _attention),
        OpRule("silu_mul", 2, frozenset(), _same_width),
        OpRule("add", 2, frozenset(), _same_width),
        OpRule("qkv_prepare", 1, _KV | {"num_heads", "rotary_dim", "eps"}, _qkv_prepare),
        OpRule("tap", 1, frozenset({"name"}), _one_input),
        OpRule("gate", 0, frozenset({"index", "name"}), _no_input),
        OpRule("sample", 1, frozenset(), _one_input),
    )
}


def check(node: Node) -> Node:
    """Return the node if its op is known and its shapes fit; raise UnsupportedModelError otherwise."""
    rule = OPS.get(node.op)
    if rule is None:
        raise UnsupportedModelError(f"{node.label}: no op named {node.op!r}")
    if len(node.inputs) != rule.num_inputs:
        raise UnsupportedModelError(f"{node.label}: {node.op} takes {rule.num_inputs} inputs, got {len(node.inputs)}")
    if extra := set(node.attrs) - rule.attrs:
        raise UnsupportedModelError(f"{node.label}: {node.op} has no attribute {sorted(extra)[0]!r}")
    rule.check(node)
    return node
