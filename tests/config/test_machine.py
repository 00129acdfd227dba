import os
import resource
from pathlib import Path

import pytest

from headrace.config.machine import MemoryBound, choose_threads, memory_bounds, memory_budget
from headrace.core.errors import CapacityError

GIB = 1 << 30


def write_tree(root: Path, files: dict[str, str]) -> Path:
    """A fake / holding these files."""
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return root


def v2_tree(root: Path, files: dict[str, str], *, group: str = "/pod/app") -> Path:
    """A version 2 hierarchy; names are relative to the mount."""
    tree = {"proc/self/cgroup": f"0::{group}\n", "sys/fs/cgroup/cgroup.controllers": "cpu memory\n"}
    return write_tree(root, tree | {f"sys/fs/cgroup/{name}": text for name, text in files.items()})


def test_without_a_quota_the_affinity_mask_decides(tmp_path: Path) -> None:
    write_tree(tmp_path, {"sys/devices/system/cpu/online": "0-3,8\n"})
    choice = choose_threads(root=tmp_path, affinity={0, 2, 3})
    assert choice.num_threads == 3
    assert choice.source == "processors this process may run on (3 of 5)"
    assert choice.note == ""


def test_the_real_affinity_mask_is_used(tmp_path: Path) -> None:
    assert choose_threads(root=tmp_path).num_threads == len(os.sched_getaffinity(0))


@pytest.mark.parametrize(("quota", "threads"), [("150000 100000", 1), ("200000 100000", 2), ("50000 100000", 1)])
def test_a_version_2_quota_is_rounded_down_to_no_less_than_one(tmp_path: Path, quota: str, threads: int) -> None:
    v2_tree(tmp_path, {"pod/app/cpu.max": quota + "\n"})
    choice = choose_threads(root=tmp_path, affinity=range(4))
    assert choice.num_threads == threads
    assert "cgroup CPU quota (/sys/fs/cgroup/pod/app)" in choice.source


def test_a_quota_above_the_affinity_mask_changes_nothing(tmp_path: Path) -> None:
    v2_tree(tmp_path, {"pod/app/cpu.max": "800000 100000\n"})
    choice = choose_threads(root=tmp_path, affinity=range(2))
    assert (choice.num_threads, "may run on" in choice.source) == (2, True)


def test_the_tightest_level_of_the_hierarchy_wins(tmp_path: Path) -> None:
    v2_tree(tmp_path, {"pod/app/cpu.max": "max 100000\n", "pod/cpu.max": "200000 100000\n", "pod/app/x": ""})
    choice = choose_threads(root=tmp_path, affinity=range(8))
    assert choice.num_threads == 2
    assert "(/sys/fs/cgroup/pod)" in choice.source


def test_inside_a_container_the_mount_root_is_the_group(tmp_path: Path) -> None:
    v2_tree(tmp_path, {"cpu.max": "300000 100000\n"}, group="/../../host/path")
    assert choose_threads(root=tmp_path, affinity=range(8)).num_threads == 3


@pytest.mark.parametrize("controllers", ["cpu", "cpu,cpuacct"])
def test_a_version_1_quota_counts(tmp_path: Path, controllers: str) -> None:
    folder = f"sys/fs/cgroup/{controllers}/docker/abc"
    write_tree(
        tmp_path,
        {
            "proc/self/cgroup": f"4:memory:/\n3:{controllers}:/docker/abc\n",
            f"{folder}/cpu.cfs_quota_us": "250000\n",
            f"{folder}/cpu.cfs_period_us": "100000\n",
            f"sys/fs/cgroup/{controllers}/cpu.cfs_quota_us": "-1\n",
            f"sys/fs/cgroup/{controllers}/cpu.cfs_period_us": "100000\n",
        },
    )
    assert choose_threads(root=tmp_path, affinity=range(8)).num_threads == 2


@pytest.mark.parametrize("text", ["", "garbage\n", "max\n", "100000 0\n", "a b\n", "1 2 3\n"])
def test_an_unreadable_quota_is_none(tmp_path: Path, text: str) -> None:
    v2_tree(tmp_path, {"pod/app/cpu.max": text})
    assert choose_threads(root=tmp_path, affinity=range(4)).num_threads == 4


def test_a_requested_number_wins_and_too_many_are_noted(tmp_path: Path) -> None:
    v2_tree(tmp_path, {"pod/app/cpu.max": "100000 100000\n"})
    choice = choose_threads(3, "env", root=tmp_path, affinity=range(4))
    assert (choice.num_threads, choice.source) == (3, "num_threads (env)")
    assert "more than the 1" in choice.note
    assert choose_threads(1, "flag", root=tmp_path, affinity=range(4)).note == ""


def test_omp_num_threads_is_not_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    assert choose_threads(root=tmp_path, affinity=range(4)).num_threads == 4


def no_address_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resource, "getrlimit", lambda _which: (resource.RLIM_INFINITY, resource.RLIM_INFINITY))


MEMINFO = {"proc/meminfo": f"MemTotal: {8 << 20} kB\nMemFree: 1 kB\nMemAvailable: {4 << 20} kB\n"}


def test_physical_memory_bounds_when_nothing_else_does(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    no_address_limit(monkeypatch)
    bounds = memory_bounds(root=write_tree(tmp_path, MEMINFO))
    assert bounds == [MemoryBound(8 * GIB, 4 * GIB, "physical memory (MemAvailable)")]
    budget = memory_budget(bounds=bounds)
    assert budget.budget_bytes == 2 * GIB
    assert budget.source == "half of 4.0 GiB free: physical memory (MemAvailable)"


def test_a_version_2_limit_counts_and_file_cache_is_free(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    no_address_limit(monkeypatch)
    write_tree(tmp_path, MEMINFO)
    v2_tree(
        tmp_path,
        {
            "pod/app/memory.max": f"{GIB}\n",
            "pod/app/memory.current": f"{GIB // 2}\n",
            "pod/app/memory.stat": f"anon 5\ninactive_file {GIB // 4}\nactive_file 7\n",
            "pod/memory.max": "max\n",
        },
    )
    tightest = memory_bounds(root=tmp_path)[0]
    assert tightest == MemoryBound(GIB, GIB * 3 // 4, "cgroup memory limit (/sys/fs/cgroup/pod/app)")


def test_the_level_with_least_left_wins_even_if_its_limit_is_larger(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    no_address_limit(monkeypatch)
    v2_tree(
        tmp_path,
        {
            "pod/app/memory.max": f"{GIB}\n",
            "pod/app/memory.current": "0\n",
            "pod/memory.max": f"{2 * GIB}\n",
            "pod/memory.current": f"{2 * GIB - 1000}\n",
        },
    )
    assert memory_bounds(root=tmp_path)[0].available_bytes == 1000


def test_memory_high_bounds_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    no_address_limit(monkeypatch)
    v2_tree(tmp_path, {"pod/app/memory.max": "max\n", "pod/app/memory.high": "5000\n", "pod/app/memory.current": "1\n"})
    assert memory_bounds(root=tmp_path)[0].limit_bytes == 5000


def test_a_version_1_limit_counts_and_its_unlimited_value_does_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    no_address_limit(monkeypatch)
    write_tree(
        tmp_path,
        {
            "proc/self/cgroup": "4:memory:/job\n",
            "sys/fs/cgroup/memory/job/memory.limit_in_bytes": f"{GIB}\n",
            "sys/fs/cgroup/memory/job/memory.usage_in_bytes": "1000\n",
            "sys/fs/cgroup/memory/job/memory.stat": "cache 1\ntotal_inactive_file 400\n",
            "sys/fs/cgroup/memory/memory.limit_in_bytes": "9223372036854771712\n",
        },
    )
    assert [b.available_bytes for b in memory_bounds(root=tmp_path)] == [GIB - 600]


def test_an_address_space_limit_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resource, "getrlimit", lambda _which: (GIB, GIB))
    write_tree(tmp_path, MEMINFO | {"proc/self/status": "Name: x\nVmSize:\t 1024 kB\n"})
    tightest = memory_bounds(root=tmp_path)[0]
    assert (tightest.limit_bytes, tightest.available_bytes) == (GIB, GIB - (1 << 20))
    assert "RLIMIT_AS" in tightest.source


def test_a_requested_budget_must_be_possible() -> None:
    bounds = [MemoryBound(GIB, GIB // 4, "cgroup memory limit (/x)"), MemoryBound(8 * GIB, 4 * GIB, "physical")]
    budget = memory_budget(GIB // 2, "flag", bounds=bounds)
    assert (budget.budget_bytes, budget.source) == (GIB // 2, "memory_budget_bytes (flag)")
    assert budget.bound is bounds[0]
    with pytest.raises(CapacityError, match=r"at most 1\.0 GiB: cgroup memory limit"):
        memory_budget(2 * GIB, "flag", bounds=bounds)


def test_unknown_memory_asks_for_a_budget(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    no_address_limit(monkeypatch)
    assert memory_bounds(root=tmp_path) == []
    with pytest.raises(CapacityError, match="--memory-budget-bytes"):
        memory_budget(bounds=[])
    assert memory_budget(GIB, bounds=[]).budget_bytes == GIB


def test_this_machine_answers() -> None:
    assert memory_bounds()[0].available_bytes > 0
