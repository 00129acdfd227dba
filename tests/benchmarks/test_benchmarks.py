"""The benchmark's own arithmetic, with servers that only sleep."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from benchmarks.processes import Memory, PeakMemory, foreign_share, tree
from benchmarks.servers import LlamaCpp, Server
from benchmarks.workload import Prompts, Sample

from benchmarks import __main__ as program
from benchmarks import workload


class Sleeper(Server):
    """Takes a millisecond per prompt and per new token."""

    name = "sleeper"

    def __init__(self) -> None:
        super().__init__(Path("model"), Path("log"), 1)
        self.asked: list[tuple[int, int]] = []

    def command(self, port: int) -> list[str]:
        raise NotImplementedError(port)

    def version(self) -> str:
        return "1"

    def ask(self, token_ids: list[int], num_tokens: int) -> None:
        self.asked.append((len(token_ids), num_tokens))
        time.sleep(0.001 * num_tokens)


@pytest.fixture
def child() -> Iterator[int]:
    """A process with 50 MB of its own and a child of its own."""
    code = (
        "import subprocess; b = bytearray(b'x' * 50_000_000); p = subprocess.Popen(['sleep', '60']); "
        "print(flush=True); input(); p.kill(); p.wait()"
    )
    with subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None and process.stdin is not None
        process.stdout.readline()
        yield process.pid
        process.communicate(b"\n")


def test_decode_rate_leaves_the_prompt_out() -> None:
    server = Sleeper()
    rate = workload.decode(server, Prompts(list(range(10_000)))).value
    assert 300 < rate < 1300
    assert server.asked == [(128, 1), (128, 1), (128, 256)]


def test_batch_counts_all_requests_and_uses_each_prompt_once() -> None:
    server, prompts = Sleeper(), Prompts(list(range(10_000)))
    assert workload.batch(server, prompts).value > 32 * 128 / 1.5
    assert server.asked == [(128, 128)] * 32
    assert prompts.take(1) == [32 * 128]


def test_text_that_is_used_up_is_an_error() -> None:
    with pytest.raises(ValueError, match="fewer repeats"):
        Prompts([1, 2]).take(3)


def test_servers_alternate() -> None:
    first, second = Sleeper(), Sleeper()
    assert list(workload.interleaved([first, second], 2)) == [first, second, first, second]


def test_memory_and_tree_count_children(child: int) -> None:
    assert len(tree(child)) == 2
    with PeakMemory(child) as peak:
        time.sleep(0.3)
        memory = peak.now()
    assert 50_000_000 < memory.pss_bytes <= memory.rss_bytes <= memory.peak_rss_bytes < 200_000_000


def test_foreign_share_is_small_for_our_own_work_and_sees_others() -> None:
    """Only a lower bound can be tested: anything may run beside the tests."""
    with subprocess.Popen([sys.executable, "-c", "while True: pass"]) as other:
        try:
            assert foreign_share(lambda: time.sleep(0.5), lambda: 0) > 0.05
        finally:
            other.kill()


def test_the_table_shows_median_spread_and_ratio() -> None:
    results = program.Results()
    for name, values in {"headrace": (3.0, 1.0, 2.0), "llama.cpp": (4.0, 4.0, 4.0)}.items():
        results.samples["decode"][name] = [Sample(v, 0.1 * v) for v in values]
        results.memory[name] = [Memory(100_000_000, 200_000_000, 300_000_000)]
    text = program.table(results, ["headrace", "llama.cpp"], {"headrace": "1", "llama.cpp": "2"})
    assert "| 2.00 (1.00 to 3.00) | 4.00 (4.00 to 4.00) | 0.50 | 0.40 |" in text
    assert "| PSS after a 1,000-token chat, MB | 100 | 100 | 1.00 |  |" in text
    widths = {line.count("|") for line in text.splitlines()}
    assert len(widths) == 1
    kept = json.loads(program.as_json(results, {}))
    assert [s["value"] for s in kept["samples"]["decode"]["headrace"]] == [3.0, 1.0, 2.0]


def test_one_engine_alone_has_no_ratio() -> None:
    results = program.Results()
    results.samples["cold"]["headrace"] = [Sample(1.5, 0.0)]
    assert "ratio" not in program.table(results, ["headrace"], {"headrace": "1"})


def test_a_wrong_build_folder_or_measure_is_said_at_once(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(FileNotFoundError, match=r"bin/llama-server is not there"):
        LlamaCpp(tmp_path, Path("m"), Path("log"), 1, num_slots=1)
    with pytest.raises(SystemExit):
        program.parse(["--measures", "decode,speed"])
    assert "unknown measures: speed" in capsys.readouterr().err
