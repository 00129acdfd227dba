"""The benchmark's own arithmetic, with servers that only sleep."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from xml.etree import ElementTree

import pytest
from benchmarks.engines import ALL, Engine, Places, engines
from benchmarks.peers.genai import OpenVino
from benchmarks.peers.llamacpp import LlamaCpp
from benchmarks.processes import Memory, PeakMemory, foreign_share, tree
from benchmarks.report import Results
from benchmarks.servers import NotThereError, Purpose, Server
from benchmarks.workload import Prompts, Sample

from benchmarks import __main__ as program
from benchmarks import report, workload


class Sleeper(Server):
    """Takes a millisecond per new token. `fails_at`: raises for prompts of that length."""

    def __init__(self, name: str = "sleeper", fails_at: int = 0) -> None:
        super().__init__(name, Path("model"), Path("log"), 1)
        self.asked: list[tuple[int, int]] = []
        self.shared_prefixes: set[int] = set()
        self._fails_at, self._running = fails_at, False

    @property
    def pid(self) -> int:
        return os.getpid() if self._running else 0

    def start(self) -> None:
        self._running = True

    def stop(self) -> None:
        self._running = False

    def wait_until_ready(self) -> None:
        if not self._running:
            raise RuntimeError("not started")

    def command(self, port: int) -> list[str]:
        raise NotImplementedError(port)

    def version(self) -> str:
        return "1"

    def ask(self, token_ids: list[int], num_tokens: int, *, reuse: bool = False) -> None:
        if len(token_ids) == self._fails_at:
            raise RuntimeError("out of order")
        if reuse:
            self.shared_prefixes.add(token_ids[0])
        self.asked.append((len(token_ids), num_tokens))
        time.sleep(0.001 * num_tokens)


def engine(name: str, measures: tuple[str, ...] = ALL, rival_of: str = "", **options: int) -> Engine:
    return Engine(name, lambda _purpose: Sleeper(name, **options), measures, rival_of, version="1")


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


def test_requests_of_the_shared_row_begin_alike() -> None:
    server = Sleeper()
    workload.shared(server, Prompts(list(range(10_000))))
    assert server.asked == [(512 + 16, 64)] * 32
    assert server.shared_prefixes == {0}


def test_a_disturbed_sample_is_taken_again() -> None:
    def quietest(tries: int, *foreign: float) -> float:
        samples = iter([Sample(1.0, f) for f in foreign])
        return workload.quietest(lambda: next(samples), tries).foreign

    assert quietest(3, 0.05) == 0.05
    assert quietest(3, 0.5, 0.02) == 0.02
    assert quietest(3, 0.5, 0.3, 0.4) == 0.3
    assert quietest(1, 0.5) == 0.5


def test_items_alternate() -> None:
    assert list(workload.interleaved(["a", "b"], 2)) == ["a", "b", "a", "b"]


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


def results_of(**values: tuple[float, ...]) -> Results:
    results = Results()
    for name, numbers in values.items():
        results.samples["decode"][name] = [Sample(v, 0.1 * v) for v in numbers]
        results.samples["cold"][name] = [Sample(v, 0.0) for v in numbers]
        results.memory["memory"][name] = [Memory(100_000_000, 200_000_000, 300_000_000)]
    return results


def test_the_table_shows_median_spread_and_who_is_not_there() -> None:
    ours, peer = engine("ours"), engine("peer")
    peer.failures["batch"] = "it fell over"
    text = report.table(results_of(ours=(3.0, 1.0, 2.0), peer=(4.0,)), [ours, peer], {"absent": "no build"})
    rows = [line for line in text.splitlines() if line.startswith("|")]
    assert "| ours 1 | 2 (1 to 3) n3 | 2.00 (1.00 to 3.00) n3 | 200 | 100 |" in rows
    assert "| peer 1 | 4 | 4.00 | 200 | 100 |" in rows
    assert any(row.startswith("| absent | not there |") for row in rows)
    assert len({row.count("|") for row in rows}) == 1
    assert "at most 0.40 cores" in text
    assert "absent: not there (no build)" in text
    assert "peer, batch: failed (it fell over)" in text


def test_ratios_are_to_the_best_rival_and_above_one_when_better() -> None:
    results = results_of(headrace=(8.0,), slow=(2.0,), fast=(4.0,), other=(99.0,))
    lines = report.ratios(results, [engine("headrace"), *(engine(n, rival_of="headrace") for n in ("slow", "fast"))])
    assert "| decode, tok/s | 8 | fast 4 | 2.00 |" in lines
    assert "| cold start, s | 8.00 | slow 2.00 | 0.25 |" in lines
    assert report.ratios(results, [engine("headrace")]) == "no peer to compare with"


def test_every_sample_is_kept_and_the_plot_is_an_image() -> None:
    results, taking_part = results_of(headrace=(3.0, 1.0, 2.0)), [engine("headrace")]
    kept = json.loads(report.as_json(results, taking_part, {}, {}))
    assert [s["value"] for s in kept["samples"]["decode"]["headrace"]] == [3.0, 1.0, 2.0]
    image = ElementTree.fromstring(report.plot(results, taking_part, "a < b"))
    texts = {element.text for element in image.iter() if element.tag.endswith("text")}
    assert {"a < b", "headrace", "decode, tok/s (more is better)", "cold start, s (less is better)"} <= texts


def test_a_peer_that_fails_is_said_and_the_run_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(program, "text_ids", lambda _server: list(range(60_000)))
    ours, peer = engine("headrace", ("decode", "prefill")), engine("peer", rival_of="headrace", fails_at=128)
    results = program.measure([ours, peer], ["decode", "prefill", "cold"], 2, 40.0)
    assert {m: {n: len(ss) for n, ss in by.items()} for m, by in results.samples.items()} == {
        "cold": {"peer": 2},
        "decode": {"headrace": 2},
        "prefill": {"headrace": 2},
    }
    assert peer.failures == {"decode": "out of order", "prefill": "out of order"}
    with pytest.raises(RuntimeError, match="out of order"):
        program.measure([engine("headrace", fails_at=128)], ["decode"], 1, 40.0)


def test_slow_engines_give_fewer_samples(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(program, "text_ids", lambda _server: list(range(60_000)))
    results = program.measure([engine("headrace")], ["prefill"], 5, 0.0)
    assert len(results.samples["prefill"]["headrace"]) == 1


def test_peers_that_are_not_there_are_named(tmp_path: Path) -> None:
    nowhere = Places(tmp_path / "model", tmp_path / "4bit", tmp_path, tmp_path / "lcpp", tmp_path / "log", 1)
    found, missing = engines(nowhere)
    assert {e.name for e in found} <= {"headrace", "headrace avx2", "headrace 4-bit"}
    assert {"llama.cpp", "ik_llama.cpp", "OpenVINO", "ik_llama.cpp 4-bit"} <= set(missing)
    found, missing = engines(nowhere, {"OpenVINO"})
    assert [e.name for e in found] == ["headrace"]
    assert set(missing) == {"OpenVINO"}


def test_openvino_s_worker_is_asked_over_pipes(tmp_path: Path) -> None:
    """A stand-in for its interpreter answers as the worker does, and prints other lines too."""
    python = tmp_path / "bin" / "python"
    python.parent.mkdir()
    (tmp_path / "lib" / "python3" / "site-packages" / "openvino_genai-1.2.dist-info").mkdir(parents=True)
    code = (
        "import json, sys\nprint('noise'); print(json.dumps({'peer': 'openvino'}), flush=True)\n"
        "for line in sys.stdin:\n r = json.loads(line)\n"
        " print(json.dumps({'peer': 'openvino', 'lengths': [r['num_tokens']] * len(r['prompts'])}), flush=True)\n"
    )
    python.write_text(f"#!{sys.executable}\n{code}")
    python.chmod(0o755)
    peer = OpenVino(python, Path("m"), tmp_path / "log", 1, Purpose.RATES)
    assert peer.version() == "1.2"
    peer.start()
    try:
        peer.wait_until_ready()
        peer.ask_all([[1], [2]], 3)
    finally:
        peer.stop()
    with pytest.raises(RuntimeError, match="not running"):
        peer.ask([1], 3)


def test_a_wrong_build_folder_or_measure_is_said_at_once(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(NotThereError, match=r"bin/llama-server is not there"):
        LlamaCpp("llama.cpp", tmp_path, Path("m"), Path("log"), 1, Purpose.SINGLE)
    with pytest.raises(SystemExit):
        program.parse(["--measures", "decode,speed"])
    assert "unknown measures: speed" in capsys.readouterr().err
