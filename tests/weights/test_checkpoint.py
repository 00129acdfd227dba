"""A checkpoint gives every weight under its logical name, whatever the file, and refuses what does not fit."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest

from headrace.config.model_config import ModelConfig
from headrace.core.errors import ModelFileError, UnsupportedModelError
from headrace.weights.checkpoint import open_checkpoint
from headrace.weights.elements import ElementType
from headrace.weights.names import file_name, logical_shapes, row_order, unpermuted_rows
from tests.fixtures.tiny_models import SPECS, bf16_bits, permute_rows, random_weights, write_gguf, write_safetensors

NAMES = sorted(SPECS)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("dtype", ["f32", "f16", "bf16"])
def test_a_folder_gives_the_weights_that_were_saved(tiny_hf: Callable[..., Path], name: str, dtype: str) -> None:
    checkpoint = open_checkpoint(tiny_hf(name, dtype))
    saved = random_weights(SPECS[name])
    assert checkpoint.format == "hf"
    assert {file_name(n, "hf") for n in checkpoint.names()} == set(saved)
    for logical in checkpoint.names():
        tensor = checkpoint.tensor(logical)
        weight = saved[tensor.name]
        if dtype == "f16":
            weight = weight.astype(np.float16).astype(np.float32)
        elif dtype == "bf16":
            weight = (bf16_bits(weight).astype(np.uint32) << 16).view(np.float32)
        assert tensor.row_order is None
        np.testing.assert_array_equal(tensor.dequantize(), weight)


@pytest.mark.parametrize("name", NAMES)
def test_a_gguf_file_gives_the_same_weights_in_the_same_order(tiny_gguf: Callable[..., Path], name: str) -> None:
    checkpoint = open_checkpoint(tiny_gguf(name, "F32"))
    saved = random_weights(SPECS[name])
    for logical in checkpoint.names():
        np.testing.assert_array_equal(checkpoint.tensor(logical).dequantize(), saved[file_name(logical, "hf")])


@pytest.mark.parametrize("name", NAMES)
def test_both_worlds_give_the_same_configuration(
    tiny_hf: Callable[..., Path], tiny_gguf: Callable[..., Path], name: str
) -> None:
    hf, file = open_checkpoint(tiny_hf(name)).config, open_checkpoint(tiny_gguf(name, "F32")).config
    for field in ModelConfig.__dataclass_fields__:
        if field not in ("rope_scaling", "rms_norm_eps", "rope_theta", "eos_token_ids"):
            assert getattr(hf, field) == getattr(file, field), field
    assert file.rms_norm_eps == np.float32(hf.rms_norm_eps)
    np.testing.assert_allclose(hf.inv_freq(), file.inv_freq(), rtol=1e-6)


def test_quantised_weights_stay_quantised_and_dequantise_as_ggml_does(tiny_gguf: Callable[..., Path]) -> None:
    checkpoint = open_checkpoint(tiny_gguf("llama", "Q4_1"))
    tensor = checkpoint.tensor("layers.1.q")
    assert tensor.element_type is ElementType.Q4_1
    assert tensor.raw.nbytes == 64 * 64 // 32 * 20
    weight = permute_rows(random_weights(SPECS["llama"])["model.layers.1.self_attn.q_proj.weight"], 4)
    kind = gguf.GGMLQuantizationType.Q4_1
    stored = gguf.dequantize(gguf.quantize(weight, kind), kind)
    np.testing.assert_array_equal(tensor.dequantize(), stored[tensor.row_order])
    assert checkpoint.tensor("embed").element_type is ElementType.Q8_0


@pytest.mark.parametrize(("num_heads", "head_dim"), [(1, 2), (3, 8), (9, 64)])
def test_row_order_undoes_llama_cpps_permutation(num_heads: int, head_dim: int) -> None:
    rows = np.arange(num_heads * head_dim * 2, dtype=np.float32).reshape(-1, 2)
    np.testing.assert_array_equal(permute_rows(rows, num_heads)[unpermuted_rows(num_heads, head_dim)], rows)


def test_only_llama_gguf_files_are_permuted(tiny_gguf: Callable[..., Path]) -> None:
    llama = open_checkpoint(tiny_gguf("llama")).config
    assert {n for n in logical_shapes(llama) if row_order(n, "gguf", llama) is not None} == {
        f"layers.{i}.{n}" for i in range(2) for n in "qk"
    }
    assert row_order("layers.0.q.bias", "gguf", llama) is not None
    qwen = open_checkpoint(tiny_gguf("qwen2")).config
    assert all(row_order(n, "gguf", qwen) is None for n in logical_shapes(qwen))


def test_a_tied_head_is_absent_and_biases_and_norms_follow_the_family(tiny_gguf: Callable[..., Path]) -> None:
    llama, qwen2, qwen3 = (open_checkpoint(tiny_gguf(n)) for n in ("llama", "qwen2", "qwen3"))
    assert not llama.has("head") and qwen3.has("head")
    assert qwen2.tensor("layers.0.k.bias").shape == (16,)
    assert not llama.has("layers.0.k.bias")
    assert qwen3.tensor("layers.2.k_norm").shape == (32,)


def test_every_logical_name_has_a_file_name_of_its_own() -> None:
    config = ModelConfig(
        architecture="qwen3", hidden_size=8, num_layers=2, num_heads=2, num_kv_heads=1, head_dim=4,
        intermediate_size=16, vocab_size=10, rms_norm_eps=1e-6, rope_theta=1e4, max_position_embeddings=16,
        attention_bias=True, attention_output_bias=True, qk_norm=True,
    )  # fmt: skip
    for style in ("hf", "gguf"):
        names = [file_name(n, style) for n in logical_shapes(config)]
        assert len(set(names)) == len(names) == 3 + 2 * 15
    assert file_name("layers.1.o.bias", "hf") == "model.layers.1.self_attn.o_proj.bias"
    assert file_name("layers.1.o.bias", "gguf") == "blk.1.attn_output.bias"


def edit_config(folder: Path, **changes: Any) -> Path:
    path = folder / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))
    return folder


@pytest.fixture
def folder(tiny_hf: Callable[..., Path], tmp_path: Path) -> Path:
    return Path(shutil.copytree(tiny_hf("llama"), tmp_path / "copy"))


def replace_weights(folder: Path, edit: Callable[[dict[str, Any]], None]) -> None:
    tensors: dict[str, Any] = {n: ("F32", w) for n, w in random_weights(SPECS["llama"]).items()}
    edit(tensors)
    write_safetensors(folder / "model.safetensors", tensors)


def test_missing_and_unknown_tensors_are_both_listed(folder: Path) -> None:
    def rename(tensors: dict[str, Any]) -> None:
        tensors["model.layers.0.mlp.gate.weight"] = tensors.pop("model.layers.0.mlp.gate_proj.weight")

    replace_weights(folder, rename)
    with pytest.raises(
        ModelFileError,
        match=r"missing tensors: \S+gate_proj.weight; tensors that a llama .* have: model.layers.0.mlp.gate.weight",
    ):
        open_checkpoint(folder)


def test_long_lists_are_cut(folder: Path) -> None:
    with pytest.raises(ModelFileError, match=r"missing tensors: model.layers.2.* and \d+ more"):
        open_checkpoint(edit_config(folder, num_hidden_layers=9))


def test_a_tensor_of_another_shape_is_named(folder: Path) -> None:
    with pytest.raises(
        ModelFileError, match=r"'model.layers.0.mlp.gate_proj.weight' has shape \[96, 64\], .* \[128, 64\]"
    ):
        open_checkpoint(edit_config(folder, intermediate_size=128))


def test_a_tensor_of_another_type_is_named(folder: Path) -> None:
    def narrow(tensors: dict[str, Any]) -> None:
        tensors["model.norm.weight"] = ("F8_E4M3", np.zeros(64, np.uint8))

    replace_weights(folder, narrow)
    with pytest.raises(UnsupportedModelError, match=r"'model.norm.weight': weights of type F8_E4M3 are not supported"):
        open_checkpoint(folder)


def test_a_bias_that_the_configuration_denies_is_not_dropped_silently(folder: Path) -> None:
    def add_bias(tensors: dict[str, Any]) -> None:
        tensors["model.layers.0.self_attn.q_proj.bias"] = ("F32", np.ones(64, np.float32))

    replace_weights(folder, add_bias)
    with pytest.raises(ModelFileError, match=r"does not have: model.layers.0.self_attn.q_proj.bias"):
        open_checkpoint(folder)


def test_saved_rope_tables_a_second_tied_head_and_bare_names_are_fine(folder: Path) -> None:
    def dress(tensors: dict[str, Any]) -> None:
        tensors["lm_head.weight"] = tensors["model.embed_tokens.weight"]
        tensors["model.layers.0.self_attn.rotary_emb.inv_freq"] = ("F32", np.zeros(8, np.float32))

    replace_weights(folder, dress)
    assert not open_checkpoint(folder).has("head")

    def strip(tensors: dict[str, Any]) -> None:
        for name in list(tensors):
            tensors[name.removeprefix("model.")] = tensors.pop(name)

    replace_weights(folder, strip)
    assert open_checkpoint(folder).tensor("embed").name == "embed_tokens.weight"


def test_end_of_sequence_ids_of_the_generation_config_are_added(folder: Path) -> None:
    edit_config(folder, eos_token_id=5)
    (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": [7, 5], "temperature": 0.6}))
    checkpoint = open_checkpoint(folder)
    assert checkpoint.config.eos_token_ids == (5, 7)
    assert checkpoint.generation_config["temperature"] == 0.6


def test_the_chat_template_file_wins_over_the_tokenizer_config(folder: Path) -> None:
    (folder / "chat_template.jinja").unlink(missing_ok=True)
    several = [{"name": "tool_use", "template": "T"}, {"name": "default", "template": "D"}]
    (folder / "tokenizer_config.json").write_text(json.dumps({"chat_template": several}))
    assert open_checkpoint(folder).chat_template == "D"
    (folder / "tokenizer_config.json").write_text(json.dumps({"chat_template": "C"}))
    assert open_checkpoint(folder).chat_template == "C"
    (folder / "chat_template.jinja").write_text("J")
    assert open_checkpoint(folder).chat_template == "J"


def test_code_in_a_model_folder_is_never_run(folder: Path, tmp_path: Path) -> None:
    canary = tmp_path / "canary"
    code = f"open({str(canary)!r}, 'w').close()\n"
    for name in ("modeling_custom.py", "configuration_custom.py", "__init__.py", "sitecustomize.py", "conftest.py"):
        (folder / name).write_text(code)
    (folder / "pytorch_model.bin").write_bytes(b"cos\nsystem\n(S'touch " + str(canary).encode() + b"'\ntR.")
    auto_map = {"AutoConfig": "configuration_custom.C", "AutoModelForCausalLM": "modeling_custom.M"}
    open_checkpoint(edit_config(folder, auto_map=auto_map))
    with pytest.raises(UnsupportedModelError, match="'CustomForCausalLM' is not supported"):
        open_checkpoint(edit_config(folder, architectures=["CustomForCausalLM"], model_type="custom"))
    assert not canary.exists()


def test_a_folder_without_or_with_a_broken_configuration_says_so(folder: Path) -> None:
    (folder / "config.json").write_text("{")
    with pytest.raises(ModelFileError, match=r"config.json: not valid JSON"):
        open_checkpoint(folder)
    (folder / "config.json").unlink()
    with pytest.raises(ModelFileError, match=r"config.json: cannot be read: No such file"):
        open_checkpoint(folder)


def test_the_revision_tells_models_apart_and_copies_not(tiny_gguf: Callable[..., Path], tmp_path: Path) -> None:
    source = tiny_gguf("llama", "Q8_0")
    first = open_checkpoint(source)
    twin = tmp_path / "renamed.gguf"
    shutil.copy(source, twin)
    assert first.revision_hash == open_checkpoint(twin).revision_hash
    tensor = first.tensor("layers.0.v")
    at = source.read_bytes().index(tensor.raw.tobytes())
    content = bytearray(source.read_bytes())
    for i in range(at, at + tensor.raw.nbytes):
        content[i] ^= 1
    twin.write_bytes(content)
    assert first.revision_hash != open_checkpoint(twin).revision_hash


def test_dropped_pages_come_back_and_a_closed_checkpoint_keeps_views(tiny_gguf: Callable[..., Path]) -> None:
    with open_checkpoint(tiny_gguf("llama", "F16")) as checkpoint:
        raw = checkpoint.tensor("embed").raw
        before = raw.tobytes()
        checkpoint.drop_pages("embed")
        assert raw.tobytes() == before
    assert raw.tobytes() == before


def test_rope_frequencies_of_a_gguf_file_are_checked(tmp_path: Path) -> None:
    path = write_gguf(SPECS["llama-rope3"], tmp_path / "m.gguf", "F32")
    config = open_checkpoint(path).config
    assert config.rope_scaling is not None and config.rope_scaling.kind == "factors"
    content = path.read_bytes()
    factors = np.array(config.rope_scaling.factors, np.float32).tobytes()
    assert content.count(factors) == 1
    path.write_bytes(content.replace(factors, np.full(len(factors) // 4, np.nan, np.float32).tobytes()))
    with pytest.raises(ModelFileError, match=r"'rope_freqs.weight' holds values outside"):
        open_checkpoint(path)


def test_the_demo_model_opens(smollm2_path: Path) -> None:
    checkpoint = open_checkpoint(smollm2_path)
    assert checkpoint.config.num_layers == 30
    assert len(checkpoint.names()) == 272
    assert checkpoint.tensor("layers.29.down").element_type is ElementType.Q4_1
    assert checkpoint.chat_template is not None and "<|im_start|>" in checkpoint.chat_template
