"""The engine process: requests go through, and however either side ends, nobody waits and nothing is left."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from headrace.config.engine import EngineConfig
from headrace.core.errors import CapacityError, EngineDeadError, InvalidRequestError
from headrace.core.outputs import TokenDelta
from headrace.core.request import EngineRequest
from headrace.engine import ipc
from headrace.engine.process.child import EngineProcess
from headrace.engine.process.remote import RemoteEngine
from tests.engine import fake_engine

ROOT = Path(__file__).parents[2]


@pytest.fixture(autouse=True)
def _child_finds_the_fake_engine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(ROOT), str(ROOT / "src")]))


@pytest.fixture
def processes() -> Iterator[list[EngineProcess]]:
    """Every process a test starts; none may be left, not even as a zombie."""
    started: list[EngineProcess] = []
    yield started
    left = [p.pid for p in started if Path(f"/proc/{p.pid}").exists()]
    for process in started:
        process.close(0.1)
    assert not left, f"engine processes left behind: {left}"


Start = Callable[..., Awaitable[tuple[EngineProcess, RemoteEngine]]]


@pytest.fixture
def start(processes: list[EngineProcess]) -> Callable[..., tuple[EngineProcess, RemoteEngine]]:
    def spawn(model: str = "counter") -> tuple[EngineProcess, RemoteEngine]:
        process = EngineProcess.start(EngineConfig(model=model), module="tests.engine.fake_engine", log_level="debug")
        processes.append(process)
        return process, RemoteEngine(process)

    return spawn


Spawn = Callable[..., tuple[EngineProcess, RemoteEngine]]


def request(request_id: str, prompt: list[int], max_tokens: int = 3) -> EngineRequest:
    return EngineRequest(request_id=request_id, prompt_token_ids=prompt, max_tokens=max_tokens)


class Answer:
    """Collects a request's deltas until it is finished."""

    def __init__(self, client: RemoteEngine, sent: EngineRequest) -> None:
        self.deltas: list[TokenDelta] = []
        self._done = asyncio.get_running_loop().create_future()
        self._first = asyncio.get_running_loop().create_future()
        client.submit(sent, self._take)

    def _take(self, delta: TokenDelta) -> None:
        self.deltas.append(delta)
        if not self._first.done():
            self._first.set_result(None)
        if delta.finish_reason is not None:
            self._done.set_result(None)

    async def first(self) -> None:
        await asyncio.wait_for(asyncio.shield(self._first), 10)

    async def all(self) -> list[int]:
        await asyncio.wait_for(asyncio.shield(self._done), 10)
        return [t for d in self.deltas for t in d.token_ids]

    @property
    def end(self) -> TokenDelta:
        return self.deltas[-1]


@asynccontextmanager
async def running(spawned: tuple[EngineProcess, RemoteEngine]) -> AsyncIterator[tuple[EngineProcess, RemoteEngine]]:
    await asyncio.wait_for(spawned[1].start(), 30)
    try:
        yield spawned
    finally:
        await asyncio.wait_for(spawned[1].close(), 30)


def test_requests_run_side_by_side_and_stats_are_answered(start: Spawn) -> None:
    async def scenario() -> None:
        async with running(start()) as (_, client):
            assert client.is_ready
            answers = [Answer(client, request(f"r{i}", [1] * (i + 1), 20)) for i in range(8)]
            stats = await asyncio.wait_for(client.stats(), 10)
            assert stats.block_size == 16
            for i, answer in enumerate(answers):
                assert await answer.all() == list(range(i + 1, i + 21))
                assert answer.end.finish_reason == "length"
            assert (await client.stats()).num_running == 0

    asyncio.run(scenario())


def test_start_reports_what_the_engine_decided(start: Spawn) -> None:
    async def scenario() -> None:
        process, client = start("a-name")
        info = await client.start()
        assert (info.model, info.architecture, info.max_num_seqs) == ("a-name", "counter", 64)
        await client.close()
        assert process.exit_code() == 0

    asyncio.run(scenario())


def test_a_prompt_of_a_million_ids_goes_through(start: Spawn) -> None:
    async def scenario() -> None:
        async with running(start()) as (_, client):
            assert await Answer(client, request("big", [2**31 - 1] * 1_000_000, 1)).all() == [1_000_000]

    asyncio.run(scenario())


def test_an_aborted_request_delivers_nothing_more_and_the_engine_forgets_it(start: Spawn) -> None:
    async def scenario() -> None:
        async with running(start()) as (_, client):
            answer = Answer(client, request("long", [1], 1_000_000))
            await answer.first()
            client.abort("long")
            num_deltas = len(answer.deltas)
            client.abort("never heard of")
            while (await client.stats()).num_running:
                await asyncio.sleep(0.01)
            assert len(answer.deltas) == num_deltas

    asyncio.run(scenario())


def test_an_id_that_is_running_is_not_taken_twice(start: Spawn) -> None:
    async def scenario() -> None:
        async with running(start()) as (_, client):
            answer = Answer(client, request("same", [1], 50))
            with pytest.raises(InvalidRequestError, match="already running"):
                client.submit(request("same", [1]), lambda _: None)
            assert len(await answer.all()) == 50

    asyncio.run(scenario())


def test_a_request_that_the_core_refuses_ends_alone(start: Spawn) -> None:
    async def scenario() -> None:
        async with running(start()) as (_, client):
            good = Answer(client, request("good", [1, 1], 30))
            bad = Answer(client, request("bad", [fake_engine.FAIL_ADD]))
            assert await bad.all() == []
            assert (bad.end.finish_reason, bad.end.error) == ("error", "this request is refused")
            assert await good.all() == list(range(2, 32))
            assert client.is_ready

    asyncio.run(scenario())


def test_a_receiver_that_raises_does_not_disturb_the_others(start: Spawn) -> None:
    def fail(_: TokenDelta) -> None:
        raise RuntimeError("the receiver's fault")

    async def scenario() -> None:
        async with running(start()) as (_, client):
            client.submit(request("bad", [1], 1000), fail)
            assert len(await Answer(client, request("good", [1], 30)).all()) == 30
            while (await client.stats()).num_running:
                await asyncio.sleep(0.01)

    asyncio.run(scenario())


@pytest.mark.parametrize(
    ("token_id", "reason"),
    [
        (fake_engine.DIE, "SIGKILL"),
        (fake_engine.FAIL_STEP, "the step failed"),
        (fake_engine.SEND_GARBAGE, "not the protocol"),
    ],
)
def test_when_the_engine_dies_every_waiting_request_and_query_is_told_why(
    token_id: int, reason: str, start: Spawn
) -> None:
    async def scenario() -> None:
        async with running(start()) as (process, client):
            waiting = Answer(client, request("waiting", [1], 1_000_000))
            await waiting.first()
            fatal = Answer(client, request("fatal", [token_id]))
            query = asyncio.create_task(client.stats())
            await waiting.all()
            await fatal.all()
            for answer in (waiting, fatal):
                assert answer.end.finish_reason == "error"
                assert reason in str(answer.end.error)
            assert client.dead_reason is not None
            assert reason in client.dead_reason
            assert not client.is_ready
            assert process.exit_code() not in (None, 0)
            assert await asyncio.gather(query, return_exceptions=True)
            with pytest.raises(EngineDeadError, match=reason):
                client.submit(request("late", [1]), lambda _: None)
            with pytest.raises(EngineDeadError, match=reason):
                await client.stats()
            client.abort("late")

    asyncio.run(scenario())


def test_a_killed_engine_is_noticed_while_idle(start: Spawn) -> None:
    async def scenario() -> None:
        async with running(start()) as (process, client):
            os.kill(process.pid, signal.SIGKILL)
            while client.dead_reason is None:
                await asyncio.sleep(0.01)
            assert "SIGKILL" in client.dead_reason

    asyncio.run(asyncio.wait_for(scenario(), 30))


@pytest.mark.parametrize(
    ("model", "kind", "words"),
    [("too-big", CapacityError, "needs 3 GB"), ("broken", EngineDeadError, "ZeroDivisionError: a fault of the code")],
)
def test_what_stops_the_start_is_raised_by_start(model: str, kind: type[Exception], words: str, start: Spawn) -> None:
    async def scenario() -> None:
        process, client = start(model)
        with pytest.raises(kind, match=words):
            await client.start()
        assert process.exit_code() == 1
        await client.close()

    asyncio.run(scenario())


def test_an_engine_killed_while_loading_raises_from_start(start: Spawn) -> None:
    async def scenario() -> None:
        process, client = start("slow")
        loading = asyncio.create_task(client.start())
        await asyncio.sleep(0.3)
        os.kill(process.pid, signal.SIGKILL)
        with pytest.raises(EngineDeadError, match="SIGKILL"):
            await loading

    asyncio.run(asyncio.wait_for(scenario(), 30))


def test_closing_while_loading_and_without_starting_leaves_nothing(start: Spawn) -> None:
    async def scenario() -> None:
        process, client = start("slow")
        loading = asyncio.create_task(client.start())
        await asyncio.sleep(0.3)
        await client.close()
        with pytest.raises(EngineDeadError, match="closed"):
            await loading
        assert process.exit_code() is not None
        other, never_started = start()
        await never_started.close()
        await never_started.close()
        assert other.exit_code() is not None

    asyncio.run(asyncio.wait_for(scenario(), 30))


def test_closing_ends_waiting_requests_with_an_error(start: Spawn) -> None:
    async def scenario() -> None:
        process, client = start()
        await client.start()
        answer = Answer(client, request("waiting", [1], 1_000_000))
        await answer.first()
        await client.close()
        assert (answer.end.finish_reason, answer.end.error) == ("error", "the engine was closed")
        assert process.exit_code() == 0

    asyncio.run(scenario())


def test_an_engine_stuck_in_a_step_ends_soon_after_close(start: Spawn) -> None:
    async def scenario() -> None:
        process, client = start()
        await client.start()
        client.submit(request("stuck", [fake_engine.HANG]), lambda _: None)
        await asyncio.sleep(0.1)
        begin_s = time.monotonic()
        await client.close()
        assert time.monotonic() - begin_s < 5
        assert process.exit_code() == 3

    asyncio.run(scenario())


def test_a_stopped_engine_is_killed_on_close(start: Spawn, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("headrace.engine.process.remote.EXIT_WAIT_S", 0.3)

    async def scenario() -> None:
        process, client = start()
        await client.start()
        os.kill(process.pid, signal.SIGSTOP)
        await client.close()
        assert process.exit_code() == -signal.SIGKILL

    asyncio.run(scenario())


def test_signals_meant_for_the_server_do_not_end_the_engine(start: Spawn) -> None:
    async def scenario() -> None:
        async with running(start()) as (process, client):
            os.kill(process.pid, signal.SIGINT)
            os.kill(process.pid, signal.SIGTERM)
            assert await Answer(client, request("r", [1], 5)).all() == [1, 2, 3, 4, 5]

    asyncio.run(scenario())


@pytest.mark.parametrize("first", [b"\xff" * 64, ipc.encode_frame(ipc.Abort("a"))], ids=["garbage", "wrong order"])
def test_an_engine_that_is_sent_garbage_says_so_and_ends(
    first: bytes, processes: list[EngineProcess], capfd: pytest.CaptureFixture[str]
) -> None:
    """Talks to the child by hand, as a broken server would."""
    ours, theirs = socket.socketpair()
    command = [
        sys.executable,
        "-m",
        "tests.engine.fake_engine",
        "--fd",
        str(theirs.fileno()),
        "--parent",
        str(os.getpid()),
    ]
    with theirs, ours:
        child = subprocess.Popen(command, pass_fds=[theirs.fileno()])
        processes.append(EngineProcess(child, ours))
        theirs.close()
        ours.sendall(first)
        ours.settimeout(20)
        decoder = ipc.from_engine_decoder()
        messages: list[ipc.FromEngine] = []
        while data := ours.recv(4096):
            messages += decoder.push(data)
        assert child.wait(20) == 1
    assert [type(m) for m in messages] == [ipc.Failure]
    assert "closing the connection" in capfd.readouterr().err


def test_garbage_after_the_start_ends_the_engine_and_not_the_server(start: Spawn) -> None:
    async def scenario() -> None:
        async with running(start()) as (process, client):
            answer = Answer(client, request("r", [1], 1_000_000))
            await answer.first()
            transport = client._transport
            assert transport is not None
            transport.write(b"\x00\x00\x00\x00garbage")
            await answer.all()
            assert "frame" in str(answer.end.error)
            assert process.exit_code() == 1

    asyncio.run(scenario())


def alive(pid: int) -> bool:
    """Running; a zombie that some other process has to reap does not count."""
    try:
        return "\nState:\tZ" not in Path(f"/proc/{pid}/status").read_text()
    except FileNotFoundError:
        return False


@pytest.mark.parametrize(
    ("model", "where"),
    [("counter", "main"), ("counter", "thread"), ("slow", "main"), ("slow", "thread"), ("slow-with-gil", "main")],
)
def test_the_engine_ends_within_five_seconds_of_a_killed_server(model: str, where: str) -> None:
    parent = subprocess.Popen(
        [sys.executable, "-m", "tests.engine.parent_script", model, where], stdout=subprocess.PIPE, text=True
    )
    with parent:
        assert parent.stdout is not None
        pid = int(parent.stdout.readline())
        if model != "counter":
            time.sleep(0.7)  # let it get from start-up into loading
        assert alive(pid)
        parent.kill()
        parent.wait()
        deadline_s = time.monotonic() + 5
        while alive(pid):
            assert time.monotonic() < deadline_s, "the engine outlived its server"
            time.sleep(0.02)


def test_an_engine_whose_parent_is_gone_before_it_begins_ends_at_once() -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        command = [sys.executable, "-m", "tests.engine.fake_engine", "--fd", str(theirs.fileno()), "--parent", "1"]
        child = subprocess.run(command, pass_fds=[theirs.fileno()], timeout=30, check=False)
    assert child.returncode == 3


def test_exit_reasons_are_words(processes: list[EngineProcess]) -> None:
    ours, theirs = socket.socketpair()
    theirs.close()
    with subprocess.Popen([sys.executable, "-c", "raise SystemExit(7)"]) as child:
        process = EngineProcess(child, ours)
        child.wait()
        assert "exit code 7" in process.exit_reason()
    processes.append(process)
