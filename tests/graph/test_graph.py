"""The builder, the op rules, fuse, place and plan comparison, on small graphs without weights."""

from __future__ import annotations

import dataclasses
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.config.model_config import ModelConfig
from headrace.core.errors import UnsupportedModelError
from headrace.graph.builder import GraphBuilder, k_segments_for
from headrace.graph.ir import Graph, KvLayers, Node, Value, View
from headrace.graph.ops import OPS, check
from headrace.graph.passes.fuse import fuse
from headrace.graph.passes.place import ELEMENT_BYTES, place
from headrace.graph.plan import Plan, diff
from headrace.kernels.lowering import Limits, lower
from headrace.kernels.table import OP_TABLE
from headrace.models.registry import FAMILIES, build_graph

ROWS = {"tokens": 32, "logits": 8}
LIMITS = Limits(max_num_batched_tokens=32, max_num_seqs=4, max_model_len=128, max_logits_rows=8)


def config(architecture: str = "llama", **changes: object) -> ModelConfig:
    values = {
        "model_type": architecture,
        "architectures": [{"llama": "Llama", "qwen2": "Qwen2", "qwen3": "Qwen3"}[architecture] + "ForCausalLM"],
        "hidden_size": 64,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 16,
        "intermediate_size": 96,
        "vocab_size": 300,
        "rms_norm_eps": 1e-5,
        "rope_theta": 10000.0,
        "max_position_embeddings": 128,
        "hidden_act": "silu",
        "tie_word_embeddings": True,
        "eos_token_id": 2,
        "bos_token_id": 1,
        **changes,
    }
    return ModelConfig.from_hf(values, where="config.json")


def formats_of(graph: Graph, default: str = "q4", **special: str) -> dict[str, str]:
    names = {p.logical for n in graph.nodes if n.weight for p in n.weight.parts}
    return {name: special.get(name.rsplit(".", 1)[-1], default) for name in names}


def fused(architecture: str = "llama", **special: str) -> Graph:
    graph = build_graph(config(architecture))
    return fuse(graph, formats_of(graph, **special))


def lowered(graph: Graph, **special: str) -> Plan:
    return lower(graph, model="m", formats=formats_of(graph, **special), limits=LIMITS, rotary_dim=16, isa="portable")


def ops(graph: Graph) -> list[str]:
    return [n.op for n in graph.nodes]


def test_every_op_has_a_shape_rule_and_an_entry_in_the_op_table() -> None:
    assert set(OPS) == set(OP_TABLE)
    assert len({entry.number for entry in OP_TABLE.values()}) == len(OP_TABLE)


@pytest.mark.parametrize("architecture", FAMILIES)
def test_a_fused_layer_is_five_calls(architecture: str) -> None:
    layer = ["linear", "qkv_prepare", "attention", "linear", "linear", "linear"]
    assert ops(fused(architecture)) == ["embed", *layer, *layer, "gate", "linear", "gate", "sample"]


@pytest.mark.parametrize("architecture", FAMILIES)
def test_fusing_loses_no_weight(architecture: str) -> None:
    graph = build_graph(config(architecture))

    def logical(g: Graph) -> set[str]:
        slots = [s for n in g.nodes for s in ([n.weight] if n.weight else []) + list(n.vectors.values())]
        return {p.logical for s in slots for p in s.parts}

    assert logical(fuse(graph, formats_of(graph))) == logical(graph)


def test_weights_of_different_formats_keep_their_own_matmul_into_one_buffer() -> None:
    graph = fused(v="q8")
    layer = graph.nodes[1:4]
    assert [n.op for n in layer] == ["linear", "linear", "linear"]
    assert len({n.output.value for n in layer if n.output}) == 1
    assert [n.output.offset for n in layer if n.output] == [0, 64, 96]
    assert graph.nodes[4].op == "qkv_prepare"


def test_gate_and_up_of_different_formats_stay_apart() -> None:
    assert ops(fused(up="q8")).count("silu_mul") == 2


def test_parts_of_a_fused_slot_tile_its_blocks_exactly_once() -> None:
    for node in fused("qwen3").nodes:
        if node.weight is None:
            continue
        blocks = [p.first_block + i * p.block_step for p in node.weight.parts for i in range(-(-p.num_outputs // 16))]
        assert sorted(blocks) == list(range(-(-node.weight.num_outputs // 16)))


def test_a_residual_is_not_fused_when_the_old_value_is_read_later() -> None:
    g = GraphBuilder(vocab_size=32, hidden_size=32, kv=KvLayers("full", 1, 1, 16))
    x = g.inputs()
    y = x + g.linear(x, "a", 32)
    g.head(y + x, "embed", kind="sample")
    graph = fuse(g.build(), {"embed": "f32", "a": "f32"})
    assert ops(graph).count("add") == 2


def test_a_norm_that_something_else_reads_stays_its_own_node() -> None:
    g = GraphBuilder(vocab_size=32, hidden_size=32, kv=KvLayers("full", 1, 1, 16))
    h = g.rms_norm(g.inputs(), "n", 1e-5)
    g.tap("hidden", h)
    g.head(h, "embed", kind="sample")
    assert "rms_norm" in ops(fuse(g.build(), {"embed": "f32"}))


def test_an_unknown_op_or_attribute_is_refused() -> None:
    with pytest.raises(UnsupportedModelError, match="no op named 'nope'"):
        check(Node("nope", (), None, "x"))
    with pytest.raises(UnsupportedModelError, match="no attribute 'speed'"):
        check(Node("gate", (), None, "x", attrs={"index": 1, "name": "a", "speed": 3}))


def test_an_unknown_architecture_names_the_nearest_family() -> None:
    strange = dataclasses.replace(config(), architecture="qwen4")
    with pytest.raises(UnsupportedModelError, match="nearest supported one is 'qwen"):
        build_graph(strange)


@pytest.mark.parametrize(("width", "segments"), [(576, 2), (1536, 8), (64, 2), (96, 1), (128, 4), (20, 1)])
def test_k_segments_lie_on_group_boundaries(width: int, segments: int) -> None:
    assert k_segments_for(width) == segments


@st.composite
def graphs(draw: st.DrawFn) -> Graph:
    """Random chains: each node reads one or two earlier values and writes a new or an old one."""
    values = {0: Value(0, "tokens", 16, "v0")}
    nodes = [Node("embed", (), View(0, 0, 16), "embed")]
    for i in range(1, draw(st.integers(1, 12))):
        picks = draw(st.lists(st.integers(0, len(values) - 1), min_size=1, max_size=2))
        target = draw(st.one_of(st.just(len(values)), st.integers(0, len(values) - 1)))
        width = draw(st.sampled_from([4, 16, 64]))
        values.setdefault(target, Value(target, draw(st.sampled_from(["tokens", "logits"])), width, f"v{target}"))
        nodes.append(Node("add", tuple(View(p, 0, values[p].width) for p in picks), View(target, 0, 4), f"n{i}"))
    return Graph(values, tuple(nodes), ())


@given(graphs())
def test_values_that_live_at_the_same_time_never_share_a_byte(graph: Graph) -> None:
    placement = place(graph, ROWS)
    spans = {}
    for value, offset in placement.offsets.items():
        touched = [
            i
            for i, n in enumerate(graph.nodes)
            if any(v.value == value for v in (*n.inputs, *([n.output] if n.output else [])))
        ]
        size = ROWS[graph.values[value].rows] * graph.values[value].width * ELEMENT_BYTES
        assert offset + size <= placement.arena_bytes
        spans[value] = (touched[0], touched[-1], offset, offset + size)
    for a, (a0, a1, begin_a, end_a) in spans.items():
        for b, (b0, b1, begin_b, end_b) in spans.items():
            if a < b and a0 <= b1 and b0 <= a1:
                assert end_a <= begin_b or end_b <= begin_a


def test_the_arena_is_reused_between_layers() -> None:
    deep = build_graph(config(num_hidden_layers=12))
    shallow = build_graph(config())
    big, small = (place(fuse(g, formats_of(g)), ROWS).arena_bytes for g in (deep, shallow))
    assert big == small


def test_equal_plans_have_equal_ids_and_no_difference() -> None:
    a, b = lowered(fused()), lowered(fused())
    assert (a.structure_id, a.numerics_id) == (b.structure_id, b.numerics_id)
    assert diff(a.to_dict(), b.to_dict()) == []


def test_another_batch_limit_changes_the_structure_but_not_the_numerics() -> None:
    graph = fused()
    a = lowered(graph)
    wide = dataclasses.replace(LIMITS, max_num_batched_tokens=64)
    b = lower(graph, model="m", formats=formats_of(graph), limits=wide, rotary_dim=16, isa="portable")
    assert a.structure_id != b.structure_id
    assert a.numerics_id == b.numerics_id
    assert any("limit max_num_batched_tokens: 32 → 64" in line for line in diff(a.to_dict(), b.to_dict()))


def test_another_weight_format_changes_the_numerics() -> None:
    a, b = lowered(fused()), lowered(fused(down="q8"), down="q8")
    assert a.numerics_id != b.numerics_id
    assert any("layers.0.down" in line and "q8" in line for line in diff(a.to_dict(), b.to_dict()))


def test_a_plan_survives_json() -> None:
    plan = lowered(fused()).to_dict()
    assert diff(json.loads(json.dumps(plan)), plan) == []


def test_a_tied_head_shares_the_embedding_s_bytes() -> None:
    plan = lowered(fused())
    embed = plan.calls[0].refs[1 - 1]
    head = next(c for c in plan.calls if c.segment == "logits" and c.op == "linear").refs[2]
    assert embed == head


def test_segments_follow_the_gates() -> None:
    plan = lowered(fused())
    assert list(plan.segments) == ["forward", "logits", "sample"]
    assert [plan.calls[first].op for first, _ in plan.segments.values()] == ["embed", "gate", "gate"]
