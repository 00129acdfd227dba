"""A real model in an engine process: the same answers as in this process, and the right error when it cannot load."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from headrace.config.engine import EngineConfig
from headrace.core.errors import CapacityError, EngineDeadError, HeadraceError
from headrace.core.params import SamplingParams
from headrace.engine.async_llm import AsyncLLM
from headrace.engine.llm import LLM
from headrace.engine.process.child import EngineProcess
from headrace.engine.process.remote import RemoteEngine

PROMPTS = [[5, 80, 99, 260, 271] * (i + 1) for i in range(4)]
PARAMS = [
    SamplingParams(max_tokens=12, ignore_eos=True, temperature=float(i % 2), seed=i, logprobs=2) for i in range(4)
]


@pytest.fixture(autouse=True)
def _child_finds_the_package(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parents[2] / "src"))


def start(config: EngineConfig) -> tuple[EngineProcess, AsyncLLM]:
    process = EngineProcess.start(config, log_level="error")
    return process, AsyncLLM(config, client=RemoteEngine(process))


async def answer(llm: AsyncLLM, prompt: list[int], params: SamplingParams) -> tuple[list[int], list[float]]:
    ids: list[int] = []
    logprobs: list[float] = []
    async for delta in llm.stream(llm.prepare(prompt, params)):
        ids += delta.token_ids
        logprobs += [p.logprob for p in delta.logprobs]
    return ids, logprobs


def test_the_process_answers_what_the_engine_in_this_process_answers(tiny_hf: Callable[..., Path]) -> None:
    config = EngineConfig(model=str(tiny_hf("llama")), num_threads=1)
    with LLM(config.model, num_threads=1) as llm:
        outputs = [o.outputs[0] for o in llm.generate(PROMPTS, PARAMS)]
        expected = [(o.token_ids, [p.logprob for p in o.logprobs or []]) for o in outputs]

    async def scenario() -> None:
        process, remote = start(config)
        async with remote:
            assert remote.is_ready
            assert remote.info.architecture == "llama"
            got = await asyncio.gather(*(answer(remote, p, sp) for p, sp in zip(PROMPTS, PARAMS, strict=True)))
            assert got == expected
            stats = await remote.stats()
            assert stats.num_running == 0
            assert stats.num_free_blocks == stats.num_blocks
            assert stats.generation_tokens >= 4 * 12
            assert stats.memory
        assert process.exit_code() == 0

    asyncio.run(scenario())


def test_leaving_a_stream_early_frees_the_request_in_the_process(tiny_hf: Callable[..., Path]) -> None:
    async def scenario() -> None:
        _, remote = start(EngineConfig(model=str(tiny_hf("llama")), num_threads=1))
        async with remote:
            params = SamplingParams(max_tokens=400, ignore_eos=True, temperature=0)
            stream = remote.stream(remote.prepare([5, 6, 7], params))
            await anext(stream)
            await stream.aclose()  # type: ignore[attr-defined]
            while (await remote.stats()).num_running:
                await asyncio.sleep(0.01)

    asyncio.run(asyncio.wait_for(scenario(), 60))


def test_a_stream_whose_engine_is_killed_raises_engine_dead(tiny_hf: Callable[..., Path]) -> None:
    async def scenario() -> None:
        process, remote = start(EngineConfig(model=str(tiny_hf("llama")), num_threads=1))
        async with remote:
            params = SamplingParams(max_tokens=400, ignore_eos=True, temperature=0)
            stream = remote.stream(remote.prepare([5, 6, 7], params))
            await anext(stream)
            os.kill(process.pid, signal.SIGKILL)
            with pytest.raises(EngineDeadError, match="SIGKILL"):
                async for _ in stream:
                    pass
            assert not remote.is_ready
            with pytest.raises(EngineDeadError):
                remote.prepare([1], params)

    asyncio.run(asyncio.wait_for(scenario(), 60))


def test_a_model_that_does_not_fit_says_so_across_the_processes(tiny_hf: Callable[..., Path]) -> None:
    async def scenario() -> None:
        config = EngineConfig(model=str(tiny_hf("llama")), memory_budget_bytes=1 << 20, num_threads=1)
        process, remote = start(config)
        with pytest.raises(CapacityError, match=r"max-model-len|budget"):
            await remote.start()
        assert process.exit_code() == 1

    asyncio.run(scenario())


def test_a_model_that_is_not_there_is_a_headrace_error(tmp_path: Path) -> None:
    async def scenario() -> None:
        process = EngineProcess.start(EngineConfig(model=str(tmp_path / "none.gguf")), log_level="error")
        client = RemoteEngine(process)
        with pytest.raises(HeadraceError, match=r"none\.gguf") as caught:
            await client.start()
        assert type(caught.value) is not EngineDeadError
        assert process.exit_code() == 1

    asyncio.run(scenario())
