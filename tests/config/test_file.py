from pathlib import Path

import pytest

from headrace.config.engine import EngineConfig
from headrace.config.file import read_config_file, split_options
from headrace.config.server import ServerConfig
from headrace.core.errors import ConfigError

KINDS = (EngineConfig, ServerConfig)


def write(folder: Path, text: str) -> str:
    path = folder / "serve.yaml"
    path.write_text(text)
    return str(path)


def test_dashes_and_underscores_are_alike_and_options_go_to_their_class(tmp_path: Path) -> None:
    values = read_config_file(write(tmp_path, "model: m.gguf\nmax-model-len: 4K\nmax_num_seqs: 8\nport: 9\n"))
    (engine, server), warnings = split_options(values, KINDS)
    config = EngineConfig.resolve(file=engine)
    assert (config.model, config.max_model_len, config.max_num_seqs) == ("m.gguf", 4096, 8)
    assert config.source("max_model_len") == "file"
    assert ServerConfig.resolve(file=server).port == 9
    assert warnings == []


def test_null_stands_for_not_given_and_flag_names_for_fields(tmp_path: Path) -> None:
    values = read_config_file(write(tmp_path, "seed: null\nmax-logprobs: 3\n"))
    (engine, _), _ = split_options(values, KINDS)
    assert engine == {"max_top_logprobs": 3}


def test_an_empty_file_is_no_options(tmp_path: Path) -> None:
    assert read_config_file(write(tmp_path, "# nothing\n")) == {}


def test_vllm_options_warn_or_are_refused(tmp_path: Path) -> None:
    values = read_config_file(write(tmp_path, "gpu-memory-utilization: 0.9\ntensor-parallel-size: 1\n"))
    _, warnings = split_options(values, KINDS)
    assert len(warnings) == 2
    with pytest.raises(ConfigError, match="adapters"):
        split_options({"enable_lora": True}, KINDS)


def test_an_unknown_name_suggests_the_nearest() -> None:
    with pytest.raises(ConfigError, match="did you mean 'max_model_len'"):
        split_options({"max_modl_len": 1}, KINDS)


@pytest.mark.parametrize(
    "text", ["- a\n- b\n", "just words\n", "1: 2\n", "a: [\n", "!!python/object/apply:os.getcwd []\n"]
)
def test_what_is_no_mapping_is_refused_in_one_line(tmp_path: Path, text: str) -> None:
    with pytest.raises(ConfigError) as caught:
        read_config_file(write(tmp_path, text))
    assert "\n" not in caught.value.message


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="nowhere"):
        read_config_file(str(tmp_path / "nowhere.yaml"))
