"""LLM and AsyncLLM on a tiny model: shapes, streaming, stop strings, aborts, errors."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import headrace
from headrace import LLM, AsyncLLM, SamplingParams
from headrace.core.errors import ContextLengthError, EngineDeadError, InvalidRequestError
from headrace.engine.completion import CompletionDelta

Make = Callable[..., Path]
GREEDY = SamplingParams(temperature=0, max_tokens=10)


@pytest.fixture(scope="module")
def llm(tiny_hf: Make) -> Iterator[LLM]:
    with LLM(str(tiny_hf("qwen3")), num_threads=1) as made:
        yield made
        made.core.check_integrity()
        assert made.stats().num_free_blocks == made.stats().num_blocks


def test_generate_gives_vllm_s_shapes(llm: LLM) -> None:
    [output] = llm.generate("Hello there", GREEDY)
    assert output.prompt == "Hello there"
    assert output.prompt_token_ids == llm.tokenizer.encode("Hello there")
    [completion] = output.outputs
    assert completion.text == llm.tokenizer.decode(completion.token_ids)
    assert completion.finish_reason in ("length", "stop")
    assert output.finished


def test_texts_ids_and_lists_of_both_are_accepted_and_agree(llm: LLM) -> None:
    ids = llm.tokenizer.encode("abc")
    one = llm.generate("abc", GREEDY)[0].outputs[0].token_ids
    assert [o.outputs[0].token_ids for o in llm.generate(["abc", ids], GREEDY)] == [one, one]
    assert llm.generate(ids, GREEDY)[0].outputs[0].token_ids == one


def test_n_gives_different_completions_that_a_seed_repeats(llm: LLM) -> None:
    params = SamplingParams(n=3, temperature=1.0, seed=5, max_tokens=8)
    first, second = (llm.generate("abc", params)[0].outputs for _ in range(2))
    assert [c.token_ids for c in first] == [c.token_ids for c in second]
    assert len({tuple(c.token_ids) for c in first}) > 1
    assert [c.index for c in first] == [0, 1, 2]


def test_requests_without_a_seed_differ_but_an_equal_engine_draws_the_same(tiny_hf: Make) -> None:
    params = SamplingParams(temperature=1.0, max_tokens=12)
    with LLM(str(tiny_hf("qwen3")), num_threads=1, seed=9) as a, LLM(str(tiny_hf("qwen3")), num_threads=1, seed=9) as b:
        from_a = [o.outputs[0].token_ids for o in a.generate(["x", "x"], params)]
        assert from_a == [o.outputs[0].token_ids for o in b.generate(["x", "x"], params)]
        assert from_a[0] != from_a[1]


def test_stream_joins_to_generate(llm: LLM) -> None:
    whole = llm.generate("stream me", GREEDY)[0].outputs[0]
    deltas = list(llm.stream("stream me", GREEDY))
    assert "".join(d.text for d in deltas) == whole.text
    assert [t for d in deltas for t in d.token_ids] == whole.token_ids
    assert [d.finish_reason for d in deltas][-1] == whole.finish_reason
    assert all(d.finish_reason is None for d in deltas[:-1])


def test_leaving_a_stream_early_frees_its_blocks(llm: LLM) -> None:
    stream = llm.stream("stream me", SamplingParams(temperature=0, max_tokens=100, ignore_eos=True))
    next(stream)
    stream.close()  # type: ignore[attr-defined]
    while llm.core.has_work:
        llm.core.step()
    assert llm.stats().num_free_blocks == llm.stats().num_blocks


def test_a_stop_string_ends_the_text_before_it(llm: LLM) -> None:
    params = SamplingParams(temperature=0, max_tokens=40, ignore_eos=True)
    text = llm.generate("tell", params)[0].outputs[0].text
    stop = text[3:6]
    [completion] = llm.generate("tell", SamplingParams(temperature=0, max_tokens=40, ignore_eos=True, stop=stop))[
        0
    ].outputs
    assert completion.text == text[: text.index(stop)]
    assert (completion.finish_reason, completion.stop_reason) == ("stop", stop)


def test_chat_goes_through_the_template(llm: LLM) -> None:
    messages = [{"role": "user", "content": "hi"}]
    [output] = llm.chat(messages, GREEDY)
    assert output.prompt is not None
    assert "hi" in output.prompt
    assert llm.generate(output.prompt_token_ids, GREEDY)[0].outputs[0].token_ids == output.outputs[0].token_ids


def test_logprobs_come_with_as_many_alternatives_as_asked(llm: LLM) -> None:
    params = SamplingParams(temperature=0, max_tokens=5, logprobs=4, prompt_logprobs=2)
    [output] = llm.generate("abcdef", params)
    [completion] = output.outputs
    assert completion.logprobs is not None
    assert [p.token_id for p in completion.logprobs] == completion.token_ids
    assert all(len(p.top) == 4 and p.rank == 1 and p.logprob <= 0 for p in completion.logprobs)
    assert output.prompt_logprobs is not None
    assert output.prompt_logprobs[0] is None
    assert len(output.prompt_logprobs) == len(output.prompt_token_ids)


def test_wrong_parameters_are_named_before_anything_runs(llm: LLM) -> None:
    with pytest.raises(InvalidRequestError, match="did you mean 'temperature'"):
        SamplingParams(temprature=0)
    with pytest.raises(InvalidRequestError, match="empty"):
        llm.generate(["fine", ""], GREEDY)
    with pytest.raises(ContextLengthError, match="may be at most"):
        llm.generate("x", SamplingParams(max_tokens=100_000))
    assert not llm.core.has_work


def test_the_longest_prompt_that_leaves_room_for_a_token_runs(llm: LLM) -> None:
    window = llm.info.max_model_len
    ids = [3 + i % 200 for i in range(window)]
    [output] = llm.generate(ids[: window - 1], SamplingParams(temperature=0, max_tokens=1))
    assert len(output.outputs[0].token_ids) == 1
    for too_long in (window, window + 1):
        with pytest.raises(ContextLengthError):
            llm.generate([*ids, 3][:too_long], SamplingParams(temperature=0, max_tokens=1))


def test_a_closed_llm_says_so(tiny_hf: Make) -> None:
    llm = LLM(str(tiny_hf("llama")), num_threads=1)
    llm.close()
    llm.close()
    with pytest.raises(EngineDeadError, match="closed"):
        llm.generate("x", GREEDY)


def test_exported_names_are_these() -> None:
    names = "AsyncLLM CompletionOutput EngineConfig HeadraceError LLM RequestOutput SamplingParams"
    assert sorted(headrace.__all__) == names.split()
    assert all(getattr(headrace, name).__name__ == name for name in headrace.__all__)


def test_async_streams_run_side_by_side_and_equal_the_plain_llm(llm: LLM, tiny_hf: Make) -> None:
    prompts = [f"prompt number {i}" for i in range(6)]
    expected = [o.outputs[0].text for o in llm.generate(prompts, GREEDY)]

    async def main() -> list[str]:
        async with AsyncLLM(model=str(tiny_hf("qwen3")), num_threads=1) as engine:

            async def one(prompt: str) -> str:
                return "".join([d.text async for d in engine.stream(engine.prepare(prompt, GREEDY))])

            texts = await asyncio.gather(*map(one, prompts))
            stats = await engine.stats()
            assert stats.num_free_blocks == stats.num_blocks
            return list(texts)

    assert asyncio.run(main()) == expected


def test_cancelling_an_async_stream_aborts_its_request(tiny_hf: Make) -> None:
    params = SamplingParams(temperature=0, max_tokens=200, ignore_eos=True)

    async def main() -> None:
        async with AsyncLLM(model=str(tiny_hf("qwen3")), num_threads=1) as engine:
            started = asyncio.Event()

            async def reader() -> None:
                async for _ in engine.stream(engine.prepare("go on", params)):
                    started.set()

            task = asyncio.create_task(reader())
            await started.wait()
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
            for _ in range(200):
                stats = await engine.stats()
                if stats.num_running == 0 and stats.num_free_blocks == stats.num_blocks:
                    break
                await asyncio.sleep(0.01)
            assert stats.num_running == 0
            assert stats.num_free_blocks == stats.num_blocks

    asyncio.run(main())


def test_closing_an_async_engine_ends_what_still_runs_with_an_error(tiny_hf: Make) -> None:
    params = SamplingParams(temperature=0, max_tokens=200, ignore_eos=True)

    async def main() -> None:
        engine = AsyncLLM(model=str(tiny_hf("llama")), num_threads=1)
        await engine.start()
        stream = engine.stream(engine.prepare("go on", params))
        first: CompletionDelta = await anext(stream)
        assert first.finish_reason is None
        await engine.close()
        with pytest.raises(EngineDeadError, match="closed"):
            async for _ in stream:
                pass
        assert not engine.is_ready
        with pytest.raises(EngineDeadError):
            engine.prepare("x", params)

    asyncio.run(main())


def test_a_model_that_cannot_be_loaded_raises_where_it_is_asked_for(tmp_path: Path) -> None:
    missing = str(tmp_path / "no-such-model.gguf")
    with pytest.raises(headrace.HeadraceError):
        LLM(missing)

    async def main() -> None:
        await AsyncLLM(model=missing).start()

    with pytest.raises(headrace.HeadraceError):
        asyncio.run(main())
