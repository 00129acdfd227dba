from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.cache import LayerGroupSpec
from headrace.core.errors import ConfigError

specs = st.builds(
    LayerGroupSpec,
    num_layers=st.integers(1, 4),
    num_kv_heads=st.integers(1, 4),
    head_dim=st.integers(1, 32),
    block_size=st.sampled_from([16, 32, 64]),
    element_bytes=st.sampled_from([1, 2, 4]),
)


def test_smollm2_takes_46080_bytes_per_token_in_f32() -> None:
    spec = LayerGroupSpec(num_layers=30, num_kv_heads=3, head_dim=64, block_size=16, element_bytes=4)
    assert spec.bytes_per_token == 2 * 30 * 3 * 64 * 4 == 46_080
    assert spec.bytes_per_block == 16 * 46_080


@given(specs)
def test_the_tiles_of_a_block_fill_it_without_gap_or_overlap(spec: LayerGroupSpec) -> None:
    tile = spec.block_size * spec.head_dim
    starts = [
        layer * spec.layer_stride + head * spec.head_stride + offset
        for layer in range(spec.num_layers)
        for head in range(spec.num_kv_heads)
        for offset in (0, spec.v_offset)
    ]
    assert starts == [index * tile for index in range(len(starts))]
    assert len(starts) * tile == spec.block_stride


@pytest.mark.parametrize(("num_tokens", "num_blocks"), [(0, 0), (1, 1), (16, 1), (17, 2), (32, 2)])
def test_blocks_needed_rounds_up(num_tokens: int, num_blocks: int) -> None:
    assert LayerGroupSpec(num_layers=1, num_kv_heads=1, head_dim=1).blocks_needed(num_tokens) == num_blocks


def test_a_full_attention_hit_ends_at_the_first_missing_block() -> None:
    held = {0: 7, 1: 3, 3: 9}
    spec = LayerGroupSpec(num_layers=1, num_kv_heads=1, head_dim=1)
    assert spec.longest_hit(4, held.get) == [7, 3]
    assert spec.longest_hit(1, held.get) == [7]
    assert spec.longest_hit(4, {}.get) == []


@pytest.mark.parametrize(
    ("field", "value"), [("block_size", 24), ("block_size", 0), ("num_layers", 0), ("kind", "sliding"), ("kind", "odd")]
)
def test_a_spec_that_cannot_be_built_names_what_is_wrong(field: str, value: object) -> None:
    fields: dict[str, object] = {"num_layers": 1, "num_kv_heads": 1, "head_dim": 1, field: value}
    with pytest.raises(ConfigError, match=str(value)):
        LayerGroupSpec(**fields)  # type: ignore[arg-type]
