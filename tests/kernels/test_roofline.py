import json
from pathlib import Path

import pytest

from headrace import _native
from headrace.kernels import roofline
from headrace.kernels.roofline import Machine, Roofline

SIZES = (1 << 19, 1 << 22)


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("HEADRACE_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture(scope="module")
def measured() -> Roofline:
    machine = roofline.this_machine(_native.available_isas()[0], 2)
    return roofline.measure(machine, sizes=SIZES, seconds=0.002)


def test_limits_are_those_of_a_computer(measured: Roofline) -> None:
    """Two processors of any kind: between a millionth and a million times 10^9 a second would be absurd."""
    assert set(measured.read) == set(SIZES)
    assert all(0.1 < rate < 10_000 for by_threads in measured.read.values() for rate in by_threads.values())
    assert measured.read_gb_s == measured.read[1 << 22][2]
    assert 1 < measured.f32_gflops < 10_000
    assert measured.one_thread["f32_gflops"] < 10_000


@pytest.mark.parametrize("isa", _native.available_isas())
def test_every_level_has_the_loops_that_its_instructions_allow(isa: str) -> None:
    found = {kind for kind in ("f32", "int8", "q4") if _native.probe_compute(isa, kind, 1, 0.001) > 0}
    assert found >= ({"f32", "int8", "q4"} if isa.startswith("avx") else {"f32"})


def test_figures_are_kept_for_the_same_machine_only(measured: Roofline, cache: Path) -> None:
    machine = measured.machine
    assert roofline.load(machine) is None
    roofline.save(measured)
    assert roofline.load(machine) == measured
    assert roofline.roofline(machine.isa, machine.num_threads) == measured
    assert roofline.load(Machine(machine.cpu, machine.isa, 3)) is None
    assert roofline.load(Machine("another", machine.isa, 2)) is None
    content = json.loads((cache / roofline.FILE_NAME).read_text())
    assert {"read_gb_s", "int8_gops", "q4_ceiling_gops", "bf16_gflops", "f32_gflops"} <= set(content)


@pytest.mark.parametrize("text", ["", "[]", '{"version": 1}', '{"version": 1, "machine": {}, "read": 3}'])
def test_a_damaged_file_counts_as_none(text: str, measured: Roofline, cache: Path) -> None:
    cache.mkdir()
    (cache / roofline.FILE_NAME).write_text(text)
    assert roofline.load(measured.machine) is None


def test_bandwidth_is_that_of_the_next_larger_working_set(measured: Roofline) -> None:
    assert measured.read_at(1) == measured.read[1 << 19][2]
    assert measured.read_at((1 << 19) + 1) == measured.read_at(1 << 40) == measured.read[1 << 22][2]


def test_probes_refuse_nonsense() -> None:
    for threads, seconds in ((0, 0.1), (1 << 20, 0.1), (1, 0.0), (1, 1e9)):
        with pytest.raises(ValueError, match=r"out of range|must lie"):
            _native.probe_compute("portable", "f32", threads, seconds)
    for size in (-1, 0, 100, 1 << 50):
        with pytest.raises(ValueError, match="out of range"):
            _native.probe_read("portable", [size], 1, 0.1)
    assert _native.probe_compute("portable", "no such kind", 1, 0.1) == 0.0
    assert _native.probe_read("portable", [], 1, 0.1) == []
