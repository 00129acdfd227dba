"""An engine without a model: AsyncLLM with a byte tokenizer, over a client that makes tokens up.

Greedy requests repeat their prompt, byte by byte; at a temperature, tokens are letters drawn from the seed. Prompts
that contain one of `FakeEngine`'s marks make it fail, end the turn, or stay silent.
"""

from __future__ import annotations

import asyncio
import random

from headrace.config.engine import EngineConfig
from headrace.core.errors import EngineDeadError
from headrace.core.outputs import FinishReason, TokenDelta, TokenLogprobs
from headrace.core.request import EngineRequest
from headrace.core.stats import EngineInfo, EngineStats, MemoryLine
from headrace.engine.async_llm import AsyncLLM
from headrace.engine.client import OnDelta
from headrace.engine.front import Front
from headrace.text.byte_tokenizer import CHAT_TEMPLATE, ByteTokenizer
from headrace.text.chat_template import ChatTemplate

BLOCK_SIZE = 16
NUM_BLOCKS = 1000
VOCAB_SIZE = 259
END_OF_TURN = 258

MEMORY = [MemoryLine(name="weights", reserved_bytes=1024, committed_bytes=1024, resident_bytes=512, note="packed")]


def engine_info(max_model_len: int) -> EngineInfo:
    return EngineInfo(
        model="fake",
        architecture="echo",
        max_model_len=max_model_len,
        max_num_seqs=8,
        max_num_batched_tokens=64,
        vocab_size=VOCAB_SIZE,
        block_size=BLOCK_SIZE,
        num_blocks=NUM_BLOCKS,
        kv_tokens=NUM_BLOCKS * BLOCK_SIZE,
        isa="none",
        num_threads=1,
        num_threads_source="test",
        budget_bytes=1 << 20,
        budget_source="test",
        structure_id="s",
        numerics_id="n",
        revision="r",
        startup_s={"load": 0.5},
        memory=MEMORY,
    )


class FakeEngine:
    """An EngineClient."""

    FAULT, SILENCE, END = "<fault>", "<silence>", "<end>"

    def __init__(self, max_model_len: int) -> None:
        self.dead_reason: str | None = None
        self.max_model_len = max_model_len
        self.submitted: list[EngineRequest] = []
        self.aborted: list[str] = []
        self.tasks: dict[str, asyncio.Task[None]] = {}
        self.receivers: dict[str, OnDelta] = {}
        self.seen: set[tuple[int, ...]] = set()

    @property
    def num_running(self) -> int:
        return len(self.tasks)

    async def start(self) -> EngineInfo:
        return engine_info(self.max_model_len)

    def submit(self, request: EngineRequest, on_delta: OnDelta) -> None:
        if self.dead_reason is not None:
            raise EngineDeadError(self.dead_reason)
        self.submitted.append(request)
        self.receivers[request.request_id] = on_delta
        self.tasks[request.request_id] = asyncio.ensure_future(self._run(request, on_delta))

    def abort(self, request_id: str) -> None:
        task = self.tasks.pop(request_id, None)
        if task is not None:
            self.aborted.append(request_id)
            task.cancel()

    async def stats(self) -> EngineStats:
        return EngineStats(
            num_running=self.num_running,
            num_waiting=0,
            num_blocks=NUM_BLOCKS,
            num_free_blocks=NUM_BLOCKS - self.num_running,
            block_size=BLOCK_SIZE,
            num_steps=1,
            num_preemptions=0,
            prefix_cache_queries=0,
            prefix_cache_hits=0,
            prompt_tokens=0,
            generation_tokens=0,
            memory=MEMORY,
        )

    async def close(self) -> None:
        for request_id in list(self.tasks):
            self.abort(request_id)

    def die(self, reason: str) -> None:
        """Tell everybody who waits that the engine is gone."""
        self.dead_reason = reason
        for request_id in list(self.tasks):
            self.tasks.pop(request_id).cancel()
            self.receivers[request_id](TokenDelta(request_id=request_id, finish_reason="error", error=reason))

    async def _run(self, request: EngineRequest, on_delta: OnDelta) -> None:
        prompt = bytes(i for i in request.prompt_token_ids if i < 256).decode("utf-8", "replace")
        cached = self._cached(request)
        if request.prompt_logprobs is not None:
            await self._score_prompt(request, on_delta)
        for step in range(max(request.max_tokens, 1)):
            await asyncio.sleep(3600 if self.SILENCE in prompt else 0)
            if self.FAULT in prompt and step == 1:
                self._end(request, on_delta, [], "error", error="the fake engine was told to fail")
                return
            token = self._token(request, step, prompt)
            reason: FinishReason | None = None
            if token in request.stop_token_ids:
                reason = "stop"
            elif step + 1 >= request.max_tokens:
                reason = "length"
            tokens = [token] if request.max_tokens else []
            if reason is not None:
                self._end(request, on_delta, tokens, reason, cached if step == 0 else 0)
                return
            on_delta(self._delta(request, tokens, cached if step == 0 else 0))

    def _cached(self, request: EngineRequest) -> int:
        key = (hash(request.cache_salt), *request.prompt_token_ids)
        known = key in self.seen
        self.seen.add(key)
        return (len(request.prompt_token_ids) - 1) // BLOCK_SIZE * BLOCK_SIZE if known else 0

    async def _score_prompt(self, request: EngineRequest, on_delta: OnDelta) -> None:
        rest = request.prompt_token_ids[1:]
        for start in range(0, len(rest), 4):
            await asyncio.sleep(0)
            scores = [scored(token, request.prompt_logprobs or 0) for token in rest[start : start + 4]]
            on_delta(TokenDelta(request_id=request.request_id, prompt_logprobs=scores))

    def _token(self, request: EngineRequest, step: int, prompt: str) -> int:
        if self.END in prompt and step == 2:
            return END_OF_TURN
        if request.logit_bias:
            return max(request.logit_bias, key=lambda i: request.logit_bias[i])
        if request.temperature == 0:
            return request.prompt_token_ids[step % len(request.prompt_token_ids)]
        return random.Random(f"{request.seed},{request.sample_index},{step}").randrange(97, 123)

    def _delta(self, request: EngineRequest, tokens: list[int], cached: int) -> TokenDelta:
        logprobs = [] if request.logprobs is None else [scored(t, request.logprobs) for t in tokens]
        return TokenDelta(request_id=request.request_id, token_ids=tokens, logprobs=logprobs, num_cached_tokens=cached)

    def _end(
        self,
        request: EngineRequest,
        on_delta: OnDelta,
        tokens: list[int],
        reason: FinishReason,
        cached: int = 0,
        error: str | None = None,
    ) -> None:
        self.tasks.pop(request.request_id, None)
        logprobs = [] if request.logprobs is None else [scored(t, request.logprobs) for t in tokens]
        on_delta(
            TokenDelta(
                request_id=request.request_id,
                token_ids=tokens,
                logprobs=logprobs,
                finish_reason=reason,
                stop_reason=tokens[-1] if reason == "stop" else None,
                num_cached_tokens=cached,
                error=error,
            )
        )


def scored(token: int, num_top: int) -> TokenLogprobs:
    """The token is the second likeliest at its position; the likeliest is the next byte value."""
    top = [((token + 1 + i) % 256 if i != 1 else token, -0.25 * (i + 1)) for i in range(num_top)]
    return TokenLogprobs(token_id=token, logprob=-0.5, rank=2, top=top)


class FakeLLM(AsyncLLM):
    """AsyncLLM over a FakeEngine, without files. Ready unless `started` is false."""

    def __init__(
        self,
        *,
        max_model_len: int = 512,
        chat_template: str | None = CHAT_TEMPLATE,
        started: bool = True,
        served: tuple[str, ...] = ("fake",),
        **options: object,
    ) -> None:
        self.engine = FakeEngine(max_model_len)
        super().__init__(EngineConfig(served_model_name=served, **options), client=self.engine)
        if started:
            tokenizer = ByteTokenizer()
            template = None if chat_template is None else ChatTemplate(chat_template, tokenizer.special_tokens)
            self._front = Front(tokenizer, template, self.engine_config)
            self._front.set_limits(engine_info(max_model_len))
            self._info = engine_info(max_model_len)
