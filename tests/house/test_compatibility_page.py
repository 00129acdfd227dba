import importlib.util
from types import ModuleType

import pytest

from headrace.config.model_config import ModelConfig
from tests.house.source import ROOT


@pytest.fixture(scope="module")
def generator() -> ModuleType:
    spec = importlib.util.spec_from_file_location("generate", ROOT / "docs" / "generate.py")
    if spec is None or spec.loader is None:
        raise ImportError("docs/generate.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_page_is_up_to_date(generator: ModuleType) -> None:
    page = (ROOT / "docs" / "compatibility.md").read_text(encoding="utf-8")
    assert page == generator.render(), "run `make docs`"


def test_every_flag_of_vllm_is_on_the_page(generator: ModuleType) -> None:
    page = generator.render()
    _, rows = generator.read_interface()
    assert [row[0] for row in rows["flag"] if f"`{row[0]}`" not in page] == []


def test_the_architectures_it_calls_supported_are() -> None:
    page = (ROOT / "docs" / "compatibility.md").read_text(encoding="utf-8")
    names = [line.split("`")[1] for line in page.splitlines() if line.endswith("| supported |")]
    sizes = {
        "hidden_size": 64,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 16,
        "num_hidden_layers": 1,
        "intermediate_size": 96,
        "vocab_size": 300,
        "max_position_embeddings": 128,
        "rms_norm_eps": 1e-5,
    }
    assert len(names) >= 3
    for name in names:
        family = name.removesuffix("ForCausalLM").lower()
        assert ModelConfig.from_hf({"architectures": [name], "model_type": family, **sizes}).architecture == family


def test_metrics_it_calls_served_exist(generator: ModuleType) -> None:
    served = generator.served_metrics()
    assert "vllm:num_requests_running" in served
    assert "vllm:prompt_tokens" in served
