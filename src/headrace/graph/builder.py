"""GraphBuilder: what a model file writes with. It reads like the formula; nothing is computed."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from headrace.graph.ir import Graph, KvLayers, Node, Rows, Value, VectorSlot, View, WeightPart, WeightSlot
from headrace.graph.ops import check

GATE_FORWARD, GATE_MASK = 1, 2


def k_segments_for(num_inputs: int) -> int:
    """Contiguous K segments of a row-parallel projection: the most of 8, 4, 2, 1 on group-of-32 boundaries.

    Fixed by shape so that one process, many cores and tensor-parallel ranks sum in the same order (NUMERICS.md).
    """
    return next((s for s in (8, 4, 2) if num_inputs % (32 * s) == 0), 1)


@dataclass(frozen=True, slots=True)
class X:
    """A handle on columns of a value; `+` adds."""

    builder: GraphBuilder
    view: View

    @property
    def width(self) -> int:
        return self.view.width

    def __add__(self, other: X) -> X:
        return self.builder.add(self, other)


@dataclass(frozen=True, slots=True)
class LayerScope:
    """One decoder layer: names its weights and knows its place in its layer group."""

    index: int
    group: int
    layer_in_group: int

    def w(self, name: str) -> str:
        return f"layers.{self.index}.{name}"


class GraphBuilder:
    """Collects nodes in order.

    vocab_size, hidden_size: shape of the embedding. kv: the layer group that `attention` writes to.
    bias: the logical weights that have a bias vector.
    """

    def __init__(self, *, vocab_size: int, hidden_size: int, kv: KvLayers, bias: frozenset[str] = frozenset()) -> None:
        self._values: dict[int, Value] = {}
        self._nodes: list[Node] = []
        self._vocab_size, self._hidden_size, self._kv, self._bias = vocab_size, hidden_size, kv, bias

    def inputs(self) -> X:
        """Token embeddings plus the header's overlay (prompt embeddings, later media): [tokens, hidden]."""
        weight = _matrix("embed", self._vocab_size, self._hidden_size)
        return self._emit("embed", (), self._new("tokens", self._hidden_size, "x"), "embed", weight=weight)

    def layers(self, num_layers: int) -> Iterator[LayerScope]:
        for i in range(num_layers):
            yield LayerScope(i, 0, i)

    def rms_norm(self, x: X, weight: str, eps: float, *, width: int | None = None) -> X:
        """RMS norm over the last axis, or over each `width` columns of it (a norm per head)."""
        vector = VectorSlot(weight, width or x.width, (WeightPart(weight, width or x.width),))
        out = self._new(self._rows(x), x.width, weight)
        return self._emit("rms_norm", (x,), out, weight, vectors={"norm": vector}, attrs={"eps": eps})

    def linear(self, x: X, weight: str, num_outputs: int, *, row_parallel: bool = False, rows: Rows = "tokens") -> X:
        """x @ W.T (+ bias): [rows, num_outputs]. `row_parallel` sums K in fixed segments."""
        vectors: dict[str, VectorSlot] = {}
        if weight in self._bias:
            vectors["bias"] = VectorSlot(f"{weight}.bias", num_outputs, (WeightPart(f"{weight}.bias", num_outputs),))
        return self._emit(
            "linear",
            (x,),
            self._new(rows, num_outputs, weight),
            weight,
            weight=_matrix(weight, num_outputs, x.width),
            vectors=vectors,
            attrs={"k_segments": k_segments_for(x.width) if row_parallel else 1, "logits_rows": rows == "logits"},
        )

    def rope(self, x: X, head_dim: int, rotary_dim: int) -> X:
        """Rotate each head by its token's position (NeoX halves), in place."""
        return self._emit("rope", (x,), x.view, "rope", attrs={"head_dim": head_dim, "rotary_dim": rotary_dim})

    def attention(self, q: X, k: X, v: X, layer: LayerScope, *, num_heads: int, scale: float) -> X:
        """Store k and v, then causal attention of q over everything stored: [tokens, num_heads * head_dim]."""
        kv = {
            "group": layer.group,
            "layer": layer.layer_in_group,
            "num_kv_heads": self._kv.num_kv_heads,
            "head_dim": self._kv.head_dim,
        }
        self._emit("kv_store", (k, v), None, layer.w("kv_store"), attrs=kv)
        out = self._new("tokens", q.width, layer.w("attention"))
        return self._emit(
            "attention", (q,), out, layer.w("attention"), attrs=kv | {"num_heads": num_heads, "scale": scale}
        )

    def silu_mul(self, gate: X, up: X) -> X:
        """silu(gate) * up."""
        return self._emit("silu_mul", (gate, up), self._new("tokens", gate.width, "silu_mul"), "silu_mul")

    def add(self, a: X, b: X) -> X:
        return self._emit("add", (a, b), self._new(self._rows(a), a.width, "x"), "add")

    def tap(self, name: str, x: X) -> None:
        """Keep each entry's last row of `x` in a row-indexed buffer that outlives the step."""
        self._emit("tap", (x,), None, f"tap.{name}", attrs={"name": name})

    def head(self, x: X, weight: str, *, kind: Literal["sample"]) -> None:
        """Logits of the step's logits rows, then sampling, with a gate before each segment."""
        if kind != "sample":
            raise ValueError(f"head kind {kind!r} is not one of: sample")
        self._emit("gate", (), None, "gate.forward", attrs={"index": GATE_FORWARD, "name": "forward"})
        logits = self.linear(x, weight, self._vocab_size, rows="logits")
        self._emit("gate", (), None, "gate.mask", attrs={"index": GATE_MASK, "name": "mask"})
        self._emit("sample", (logits,), None, "sample")

    def build(self) -> Graph:
        return Graph(dict(self._values), tuple(self._nodes), (self._kv,))

    def _rows(self, x: X) -> Rows:
        return self._values[x.view.value].rows

    def _new(self, rows: Rows, width: int, name: str) -> View:
        value = Value(len(self._values), rows, width, name)
        self._values[value.id] = value
        return View(value.id, 0, width)

    def _emit(
        self,
        op: str,
        inputs: tuple[X, ...],
        output: View | None,
        label: str,
        *,
        weight: WeightSlot | None = None,
        vectors: Mapping[str, VectorSlot] | None = None,
        attrs: Mapping[str, Any] | None = None,
    ) -> X:
        node = Node(op, tuple(x.view for x in inputs), output, label, weight, vectors or {}, attrs or {})
        self._nodes.append(check(node))
        return X(self, output if output is not None else node.inputs[0] if node.inputs else View(-1, 0, 0))


def _matrix(name: str, num_outputs: int, num_inputs: int) -> WeightSlot:
    return WeightSlot(name, num_outputs, num_inputs, (WeightPart(name, num_outputs),))
