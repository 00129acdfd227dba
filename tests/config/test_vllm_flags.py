from collections import Counter
from pathlib import Path

import pytest

from headrace.config import vllm_flags as module
from headrace.config.engine import EngineConfig
from headrace.config.server import ServerConfig
from headrace.config.vllm_flags import SHORT_FLAGS, judge_vllm_option, vllm_flags
from headrace.core.errors import ConfigError

INTERFACE = Path(__file__).parents[2] / "docs" / "data" / "vllm-interface.tsv"


def interface_flags() -> set[str]:
    rows = [line.split("\t") for line in INTERFACE.read_text().splitlines()]
    return {row[1][2:] for row in rows if row[0] == "flag"}


def test_every_flag_of_vllm_is_supported_or_judged_and_never_both() -> None:
    supported = {spec.flag[2:] for kind in (EngineConfig, ServerConfig) for spec in kind.specs()} | {"config"}
    judged = set(vllm_flags())
    assert interface_flags() - supported - judged == set()
    assert judged & supported == set()
    assert judged - interface_flags() == set()


def test_no_flag_is_listed_twice() -> None:
    listed = [*module._ACCEPTED_SWITCHES, *module._ACCEPTED_VALUES, *module._ACCEPTED_AT]
    listed += [name for names in module._REFUSED.values() for name in names.split()]
    assert [name for name, count in Counter(listed).items() if count > 1] == []


def test_every_judgement_has_a_reason() -> None:
    assert [flag.name for flag in vllm_flags().values() if len(flag.reason) < 8] == []


def test_short_spellings_lead_to_known_names() -> None:
    supported = {spec.flag[2:] for spec in EngineConfig.specs()}
    assert {long[2:] for long in SHORT_FLAGS.values()} <= set(vllm_flags()) | supported


def test_accepted_at_one_value_means_at_no_other() -> None:
    assert "no effect" in str(judge_vllm_option("tensor_parallel_size", 1))
    assert "no effect" in str(judge_vllm_option("enable-chunked-prefill", True))
    with pytest.raises(ConfigError, match="may only be 1"):
        judge_vllm_option("tensor-parallel-size", "2")
    with pytest.raises(ConfigError, match="always computed in chunks"):
        judge_vllm_option("enable_chunked_prefill", False)


def test_refused_names_say_why_and_unknown_names_are_nobodys() -> None:
    with pytest.raises(ConfigError, match="reverse proxy"):
        judge_vllm_option("api-key", "secret")
    assert judge_vllm_option("no-such-option", 1) is None
