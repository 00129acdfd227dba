"""fuse: fewer, larger nodes with the same bits.

Each rule is one function graph → graph. None changes the order of a single float operation, so a fused plan's
results equal the unfused plan's bit for bit; a test holds them to it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from headrace.graph.ir import LANES, Graph, Node, Value, VectorSlot, View, WeightPart, WeightSlot
from headrace.graph.ops import check


def fuse(graph: Graph, formats: Mapping[str, str]) -> Graph:
    """Apply every rule. `formats`: logical weight → packed format; only weights of equal format share a slot."""
    for rule in (fuse_qkv, fuse_gate_up):
        graph = rule(graph, formats)
    for late in (fuse_norm, fuse_residual):
        graph = late(graph)
    return graph


def fuse_qkv(graph: Graph, formats: Mapping[str, str]) -> Graph:
    """q, k, v projections into one buffer (one matmul where formats agree), then norms, rope and KV write at once."""
    nodes = list(graph.nodes)
    values = dict(graph.values)
    for store in [n for n in nodes if n.op == "kv_store"]:
        match = _match_qkv(nodes, store)
        if match is None:
            continue
        linears, norms, old, attention = match
        width = sum(n.output.width for n in linears if n.output)
        value = Value(max(values) + 1, "tokens", width, store.label.replace("kv_store", "qkv"))
        values[value.id] = value
        buffer = View(value.id, 0, width)
        projections = _project_into(buffer, linears, formats, value.name)
        prepare = Node(
            "qkv_prepare",
            (buffer,),
            buffer,
            store.label.replace("kv_store", "qkv_prepare"),
            vectors={f"{name}_norm": n.vectors["norm"] for name, n in norms.items()},
            attrs={**store.attrs, "num_heads": attention.attrs["num_heads"]}
            | {"rotary_dim": next(n.attrs["rotary_dim"] for n in old if n.op == "rope")}
            | {"eps": next((n.attrs["eps"] for n in norms.values()), 0.0)},
        )
        q_view = View(value.id, 0, attention.inputs[0].width)
        at = nodes.index(linears[0])
        fused = [*projections, check(prepare), check(replace(attention, inputs=(q_view,)))]
        gone = {id(n) for n in (*linears, *norms.values(), *old, attention)}
        nodes = [n for n in nodes[:at] if id(n) not in gone] + fused + [n for n in nodes[at:] if id(n) not in gone]
    return _prune(Graph(values, tuple(nodes), graph.kv_groups))


def fuse_gate_up(graph: Graph, formats: Mapping[str, str]) -> Graph:
    """silu(x @ G) * (x @ U) as one matmul whose packed blocks alternate gate and up."""
    nodes = list(graph.nodes)
    for node in [n for n in nodes if n.op == "silu_mul"]:
        gate, up = (_writer(nodes, v) for v in node.inputs)
        if gate.op != "linear" or up.op != "linear" or gate.inputs != up.inputs or gate.vectors or up.vectors:
            continue
        if gate.weight is None or up.weight is None or formats[gate.weight.name] != formats[up.weight.name]:
            continue
        num = gate.weight.num_outputs
        if num % LANES:
            continue
        parts = (WeightPart(gate.weight.name, num, 0, 2), WeightPart(up.weight.name, num, 1, 2))
        name = gate.weight.name + "_up"
        slot = WeightSlot(name, 2 * num, gate.weight.num_inputs, parts)
        fused = Node("linear", gate.inputs, node.output, name, slot, {}, {**gate.attrs, "silu_mul": True})
        nodes[nodes.index(node)] = check(fused)
        nodes.remove(gate)
        nodes.remove(up)
    return _prune(Graph(graph.values, tuple(nodes), graph.kv_groups))


def fuse_norm(graph: Graph) -> Graph:
    """A norm over the whole row that only matmuls read becomes their prologue."""
    nodes: list[Node | None] = list(graph.nodes)
    reads: dict[int, list[int]] = {}
    writes: dict[int, list[int]] = {}
    for at, node in enumerate(graph.nodes):
        for value in {v.value for v in node.inputs}:
            reads.setdefault(value, []).append(at)
        if node.output is not None:
            writes.setdefault(node.output.value, []).append(at)
    for at, norm in enumerate(graph.nodes):
        if norm.op != "rms_norm" or norm.output is None or norm.vectors["norm"].width != norm.output.width:
            continue
        readers = reads.get(norm.output.value, [])
        if not readers or any(graph.nodes[i].op != "linear" for i in readers):
            continue
        if any(at < i < readers[-1] for i in writes.get(norm.inputs[0].value, ())):
            continue
        for i in readers:
            reader = graph.nodes[i]
            nodes[i] = check(
                replace(
                    reader,
                    inputs=norm.inputs,
                    vectors={**reader.vectors, "norm": norm.vectors["norm"]},
                    attrs={**reader.attrs, "eps": norm.attrs["eps"]},
                )
            )
        nodes[at] = None
    return _prune(Graph(graph.values, tuple(n for n in nodes if n is not None), graph.kv_groups))


def fuse_residual(graph: Graph) -> Graph:
    """x + linear(h) in place on x, when nothing reads the old x afterwards."""
    last_read = {v.value: at for at, node in enumerate(graph.nodes) for v in node.inputs}
    renamed: dict[int, int] = {}
    nodes: list[Node] = []
    for at, original in enumerate(graph.nodes):
        node = _renamed(original, renamed)
        linear = nodes[-1] if nodes else None
        if (
            linear is not None
            and node.output is not None
            and _is_residual(linear, node)
            and all(last_read[v.value] <= at for v in node.inputs)
        ):
            x, new = node.inputs[0], node.output.value
            nodes[-1] = check(replace(linear, output=x, attrs={**linear.attrs, "residual": True}))
            renamed[new] = x.value
            last_read[x.value] = last_read.get(new, at)
        else:
            nodes.append(node)
    return _prune(Graph(graph.values, tuple(nodes), graph.kv_groups))


def _is_residual(linear: Node, add: Node) -> bool:
    """`add` adds to something the fresh output of `linear`."""
    if add.op != "add" or linear.op != "linear" or linear.attrs.get("silu_mul"):
        return False
    return add.inputs[1] == linear.output and add.inputs[0].value != add.inputs[1].value


def _match_qkv(nodes: list[Node], store: Node) -> tuple[list[Node], dict[str, Node], list[Node], Node] | None:
    """The linears, head norms, ropes plus store, and the attention around one kv_store; None when the shape differs."""
    attention = next(
        n for n in nodes if n.op == "attention" and all(n.attrs[a] == store.attrs[a] for a in ("group", "layer"))
    )
    norms: dict[str, Node] = {}
    linears: list[Node] = []
    ropes: list[Node] = []
    for name, view in (("q", attention.inputs[0]), ("k", store.inputs[0]), ("v", store.inputs[1])):
        roped = [n for n in nodes if n.op == "rope" and n.output == view]
        ropes += roped
        if len(roped) != (name != "v"):
            return None
        node = _writer(nodes, view)
        if node.op == "rms_norm":
            norms[name] = node
            node = _writer(nodes, node.inputs[0])
        if node.op != "linear":
            return None
        linears.append(node)
    if len({n.inputs for n in linears}) != 1 or len(norms) not in (0, 2):
        return None
    return linears, norms, [*ropes, store], attention


def _project_into(buffer: View, linears: list[Node], formats: Mapping[str, str], name: str) -> list[Node]:
    """The three projections as writers of one buffer: a single node when they can share a packed slot."""
    slots = [n.weight for n in linears if n.weight is not None]
    biased = [n.vectors.get("bias") for n in linears]
    same = len({formats[s.name] for s in slots}) == 1 and all(s.num_outputs % LANES == 0 for s in slots)
    if same and len({b is None for b in biased}) == 1:
        parts, block = [], 0
        for s in slots:
            parts.append(WeightPart(s.name, s.num_outputs, block))
            block += s.num_outputs // LANES
        slot = WeightSlot(name, buffer.width, slots[0].num_inputs, tuple(parts))
        vectors = {}
        if biased[0] is not None:
            vectors["bias"] = VectorSlot(
                f"{name}.bias", buffer.width, tuple(p for b in biased if b is not None for p in b.parts)
            )
        return [check(Node("linear", linears[0].inputs, buffer, name, slot, vectors, linears[0].attrs))]
    out, offset = [], 0
    for node, s in zip(linears, slots, strict=True):
        out.append(check(replace(node, output=View(buffer.value, offset, s.num_outputs))))
        offset += s.num_outputs
    return out


def _writer(nodes: list[Node], view: View) -> Node:
    """The node that first writes exactly this view (in-place ops come later)."""
    return next(n for n in nodes if n.output is not None and n.output.value == view.value)


def _renamed(node: Node, names: Mapping[int, int]) -> Node:
    """`node` with its values called by their new names."""
    output = node.output
    if not any(v.value in names for v in node.inputs) and (output is None or output.value not in names):
        return node

    def view(v: View) -> View:
        return replace(v, value=names[v.value]) if v.value in names else v

    return replace(node, inputs=tuple(map(view, node.inputs)), output=None if output is None else view(output))


def _prune(graph: Graph) -> Graph:
    used = {v.value for n in graph.nodes for v in (*n.inputs, *([n.output] if n.output else []))}
    return replace(graph, values={i: v for i, v in graph.values.items() if i in used})
