import dataclasses
import logging
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import pytest

from headrace.config.engine import EngineConfig
from headrace.config.options import Options, option
from headrace.config.server import ServerConfig
from headrace.core.errors import ConfigError


@dataclass(frozen=True, kw_only=True)
class Sample(Options):
    count: int = option(4, unit="things", help="how many", env="SAMPLE_COUNT", minimum=1, maximum=10)
    ratio: float = option(0.5, unit="share", help="how much", minimum=0.0)
    on: bool = option(False, unit="switch", help="whether")
    names: tuple[str, ...] = option((), unit="names", help="which")
    mode: str = option("a", unit="choice", help="how", choices=("a", "b"), refused={"c": "there is no c yet"})
    limit_bytes: int | None = option(None, unit="bytes", help="at most", flag="--limit", minimum=1)


def test_flag_wins_over_argument_over_environment_over_file_over_default() -> None:
    places: dict[str, Any] = {
        "file": {"count": 1},
        "environ": {"SAMPLE_COUNT": "2"},
        "arguments": {"count": 3},
        "flags": {"count": 5},
    }
    expected = [("default", 4), ("file", 1), ("env", 2), ("argument", 3), ("flag", 5)]
    for i, (source, value) in enumerate(expected):
        given = dict(list(places.items())[:i])
        config = Sample.resolve(**given)
        assert (config.count, config.source("count")) == (value, source)
        assert config.resolved()["count"].source == source


def test_an_empty_environment_variable_counts_as_unset() -> None:
    assert Sample.resolve(environ={"SAMPLE_COUNT": ""}).source("count") == "default"


def test_an_undeclared_environment_variable_is_not_read() -> None:
    assert Sample.resolve(environ={"SAMPLE_RATIO": "3", "HEADRACE_RATIO": "3"}).ratio == 0.5


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"count": 0}, "count must be an integer from 1 to 10 (things), got 0"),
        ({"count": 11}, "got 11"),
        ({"count": True}, "must be an integer"),
        ({"count": 2.0}, "must be an integer"),
        ({"count": "2"}, "must be an integer"),
        ({"count": None}, "must be an integer"),
        ({"ratio": float("nan")}, "must be a number"),
        ({"ratio": float("inf")}, "must be a number"),
        ({"ratio": -0.1}, "at least 0"),
        ({"on": 1}, "must be true or false"),
        ({"names": [1]}, "must be a name or a list of names"),
        ({"names": [""]}, "must be a name or a list of names"),
        ({"mode": "d"}, "must be one of a, b, got 'd'"),
        ({"mode": "c"}, "cannot be 'c': there is no c yet"),
        ({"limit_bytes": 0}, "at least 1 B"),
        ({"cuont": 3}, "unknown option 'cuont'; did you mean 'count'?"),
        ({"zzz": 3}, "unknown option 'zzz'"),
    ],
)
def test_what_is_wrong_is_named(values: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        Sample.resolve(arguments=values)
    assert message in caught.value.message
    assert caught.value.param == next(iter(values))


def test_the_plain_constructor_checks_too() -> None:
    with pytest.raises(ConfigError, match="count"):
        Sample(count=99)


def test_errors_name_the_place_the_value_came_from() -> None:
    for given, place in (
        ({"flags": {"count": 0}}, "(from --count)"),
        ({"environ": {"SAMPLE_COUNT": "0"}}, "(from SAMPLE_COUNT)"),
        ({"environ": {"SAMPLE_COUNT": "x"}}, "(from SAMPLE_COUNT)"),
        ({"file": {"count": "0"}}, "(in the configuration file)"),
        ({"flags": {"limit_bytes": 0}}, "(from --limit)"),
    ):
        with pytest.raises(ConfigError) as caught:
            Sample.resolve(**given)  # type: ignore[arg-type]
        assert place in caught.value.message


def test_stored_forms_are_canonical() -> None:
    config = Sample.resolve(arguments={"names": ["x", "y"], "ratio": 1})
    assert config.names == ("x", "y")
    assert isinstance(config.ratio, float)
    assert Sample.resolve(arguments={"names": "x"}).names == ("x",)
    assert Sample.resolve(file={"names": "x, y", "limit_bytes": "2KiB", "on": "yes"}) == Sample(
        names=("x", "y"), limit_bytes=2048, on=True
    )
    assert EngineConfig(model=Path("a/b.gguf")).model == "a/b.gguf"  # type: ignore[arg-type]


def test_options_are_immutable_values() -> None:
    config = Sample(count=2)
    with pytest.raises(dataclasses.FrozenInstanceError):
        config.count = 3  # type: ignore[misc]
    assert config == Sample.resolve(flags={"count": 2})
    changed = config.with_value("limit_bytes", 7, "machine")
    assert (config.limit_bytes, changed.limit_bytes, changed.source("limit_bytes")) == (None, 7, "machine")
    assert "sources" not in repr(config)


def test_explain_says_value_unit_range_and_source_of_every_option() -> None:
    rows = {row.name: row for row in Sample.resolve(flags={"count": 2}).explain()}
    assert list(rows) == [f.name for f in dataclasses.fields(Sample) if f.name != "sources"]
    assert (rows["count"].value, rows["count"].unit) == ("2", "things")
    assert (rows["count"].source, rows["count"].range) == ("flag", "1..10")
    assert rows["limit_bytes"].value == "auto"
    assert rows["mode"].range == "a | b"


@pytest.mark.parametrize("config", [EngineConfig(max_model_len=128, served_model_name=("m",)), ServerConfig(port=1)])
def test_configurations_cross_a_socket_unchanged(config: Options) -> None:
    config = config.with_value("log_level" if isinstance(config, ServerConfig) else "isa", "debug", "env")
    decoded = msgspec.msgpack.decode(msgspec.msgpack.encode(config), type=type(config))
    assert decoded == config
    assert decoded.sources == config.sources


def test_a_corrupt_configuration_does_not_decode() -> None:
    bad = msgspec.msgpack.encode({"max_num_seqs": 0})
    with pytest.raises((ConfigError, msgspec.ValidationError)):
        msgspec.msgpack.decode(bad, type=EngineConfig)


def test_engine_defaults_are_those_of_the_design() -> None:
    config = EngineConfig()
    assert (config.model, config.max_num_seqs, config.max_num_batched_tokens) == ("smollm2", 64, 512)
    assert (config.block_size, config.enable_prefix_caching, config.scheduling_policy) == (16, True, "fcfs")
    assert (config.max_model_len, config.memory_budget_bytes, config.num_threads) == (None, None, None)
    assert (config.max_top_logprobs, config.max_logits_rows, config.prefault, config.seed) == (20, 64, False, 0)


def test_every_running_request_can_sample_in_one_step() -> None:
    assert EngineConfig(max_num_seqs=100).num_logits_rows == 100
    assert EngineConfig(max_num_seqs=2).num_logits_rows == 64


@pytest.mark.parametrize("block_size", [8, 17, 24])
def test_blocks_are_whole_tiles(block_size: int) -> None:
    with pytest.raises(ConfigError, match="block_size"):
        EngineConfig(block_size=block_size)


@pytest.mark.parametrize("dtype", ["bfloat16", "half", "float16"])
def test_a_dtype_without_kernels_is_refused_with_the_reason(dtype: str) -> None:
    with pytest.raises(ConfigError, match="no kernels yet"):
        EngineConfig(dtype=dtype)


def test_keywords_take_flag_names_and_vllm_names(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, logger="headrace"):
        config = EngineConfig.from_arguments(max_logprobs=5, gpu_memory_utilization=0.9, tensor_parallel_size=1)
    assert (config.max_top_logprobs, config.source("max_top_logprobs")) == (5, "argument")
    assert len(caplog.records) == 2
    assert all("has no effect" in record.message for record in caplog.records)
    with pytest.raises(ConfigError, match="may only be 1"):
        EngineConfig.from_arguments(tensor_parallel_size=2)
    with pytest.raises(ConfigError, match="did you mean 'max_num_seqs'"):
        EngineConfig.from_arguments(max_num_seq=2)


def test_keyword_construction_reads_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HEADRACE_NUM_THREADS", "3")
    assert EngineConfig.from_arguments().num_threads == 3
    assert EngineConfig.from_arguments(num_threads=1).num_threads == 1
    assert EngineConfig().num_threads is None
