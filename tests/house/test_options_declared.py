import dataclasses

import pytest

from headrace.config.engine import EngineConfig
from headrace.config.options import Options, OptionSpec
from headrace.config.server import ServerConfig

KINDS: tuple[type[Options], ...] = (EngineConfig, ServerConfig)
SPECS = [spec for kind in KINDS for spec in kind.specs()]


def test_every_field_is_a_declared_option() -> None:
    for kind in KINDS:
        assert [f.name for f in dataclasses.fields(kind) if f.name != "sources"] == [s.name for s in kind.specs()]


@pytest.mark.parametrize("spec", SPECS, ids=lambda spec: spec.name)
def test_every_option_has_unit_help_and_range(spec: OptionSpec) -> None:
    assert spec.unit
    assert len(spec.help) > 10
    assert not spec.help.endswith(".")
    if spec.kind in (int, float):
        assert spec.minimum is not None
        assert spec.maximum is not None
        assert spec.minimum < spec.maximum
    if spec.unit == "choice":
        assert spec.choices
    assert spec.range_text


@pytest.mark.parametrize("spec", SPECS, ids=lambda spec: spec.name)
def test_names_tell_their_unit(spec: OptionSpec) -> None:
    assert (spec.unit == "bytes") == spec.name.endswith("_bytes")
    assert (spec.unit == "switch") == (spec.kind is bool)
    assert spec.env is None or spec.env == "HEADRACE_" + spec.name.upper()


def test_flags_are_unique() -> None:
    flags = [spec.flag for spec in SPECS]
    assert len(set(flags)) == len(flags)


@pytest.mark.parametrize("kind", KINDS)
def test_every_value_knows_its_source(kind: type[Options]) -> None:
    assert {resolved.source for resolved in kind().resolved().values()} == {"default"}
    assert [row.source for row in kind().explain()] == ["default"] * len(kind.specs())
