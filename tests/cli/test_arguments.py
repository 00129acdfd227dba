from pathlib import Path

import pytest

from headrace.cli.arguments import Parser, resolve_options
from headrace.config.engine import EngineConfig
from headrace.config.server import ServerConfig
from headrace.core.errors import ConfigError


@pytest.fixture
def parser() -> Parser:
    made = Parser(prog="headrace test", usage="[MODEL]", description="", examples="")
    made.add_model()
    made.add_options(EngineConfig, ServerConfig)
    return made


def resolve(parser: Parser, *words: str) -> tuple[EngineConfig, ServerConfig]:
    return resolve_options(parser.parse_words(words))


def test_every_option_has_its_flag(parser: Parser) -> None:
    for kind in (EngineConfig, ServerConfig):
        for spec in kind.specs():
            assert spec.flag in parser._option_string_actions


def test_without_flags_everything_is_default(parser: Parser) -> None:
    assert resolve(parser) == (EngineConfig(), ServerConfig())
    assert resolve(parser)[0].sources == {}


def test_flags_set_values_and_sources(parser: Parser) -> None:
    engine, server = resolve(parser, "m.gguf", "--max-model-len", "4K", "--no-enable-prefix-caching", "--port=9000")
    assert (engine.model, engine.max_model_len, engine.enable_prefix_caching, server.port) == (
        "m.gguf",
        4096,
        False,
        9000,
    )
    assert engine.sources == {"model": "flag", "max_model_len": "flag", "enable_prefix_caching": "flag"}


def test_underscores_are_dashes(parser: Parser) -> None:
    assert resolve(parser, "--max_num_seqs=3")[0].max_num_seqs == 3
    assert resolve(parser, "--kv_cache_memory_bytes", "1GiB")[0].kv_cache_memory_bytes == 1 << 30


def test_served_names_take_words_and_commas(parser: Parser) -> None:
    assert resolve(parser, "m", "--served-model-name", "a", "b,c", "--port", "1")[0].served_model_name == (
        "a",
        "b",
        "c",
    )


@pytest.mark.parametrize(
    "words",
    [
        ["--gpu-memory-utilization", "0.9", "m"],
        ["--gpu-memory-utilization=0.9", "m"],
        ["--enforce-eager", "m"],
        ["--trust-remote-code", "--no-use-tqdm-on-load", "m"],
        ["-tp", "1", "m"],
        ["-cc.mode", "3", "m"],
        ["--enable-chunked-prefill", "m"],
    ],
)
def test_harmless_vllm_options_are_dropped_with_a_warning(
    parser: Parser, words: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert resolve(parser, *words)[0] == EngineConfig(model="m")
    err = capsys.readouterr().err
    assert err.count("headrace: warning: ") == err.count("\n") > 0
    assert "has no effect" in err


def test_abbreviations_are_not_guessed(parser: Parser) -> None:
    with pytest.raises(ConfigError, match="did you mean '--port'"):
        parser.parse_words(["--por", "3"])


def test_flags_win_over_environment_over_file(
    parser: Parser, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "c.yaml"
    path.write_text("model: f.gguf\nnum-threads: 3\nmax-num-seqs: 5\nport: 7\nenforce-eager: true\n")
    monkeypatch.setenv("HEADRACE_NUM_THREADS", "2")
    engine, server = resolve(parser, "--config", str(path), "--max-num-seqs", "6")
    assert (engine.model, engine.num_threads, engine.max_num_seqs, server.port) == ("f.gguf", 2, 6, 7)
    assert engine.sources == {"model": "file", "num_threads": "env", "max_num_seqs": "flag"}
    assert "enforce-eager" in capsys.readouterr().err
    assert resolve(parser, "m", "--config", str(path))[0].model == "m"


def test_a_wrong_environment_variable_is_named(parser: Parser, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HEADRACE_NUM_THREADS", "many")
    with pytest.raises(ConfigError, match="from HEADRACE_NUM_THREADS"):
        resolve(parser)
