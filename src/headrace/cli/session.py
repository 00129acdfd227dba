"""Session: a model loaded in this process and asked one thing at a time, from code that is not asynchronous."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import aclosing
from dataclasses import dataclass, field
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from headrace.config.engine import EngineConfig
from headrace.core.params import SamplingParams

if TYPE_CHECKING:
    from headrace.core.stats import EngineInfo


@dataclass(slots=True)
class Answer:
    """What came back so far. `finish_reason` is None while it runs and after an interruption."""

    text: str = ""
    token_ids: list[int] = field(default_factory=list)
    num_prompt_tokens: int = 0
    num_cached_tokens: int = 0
    finish_reason: str | None = None
    stop_reason: int | str | None = None
    first_token_s: float = 0.0
    total_s: float = 0.0


class Session:
    """A context manager around AsyncLLM. Ctrl-C during `ask` aborts that request and raises KeyboardInterrupt."""

    def __init__(self, config: EngineConfig) -> None:
        import asyncio

        from headrace.engine.async_llm import AsyncLLM

        self._runner = asyncio.Runner()
        self._llm = AsyncLLM(config)
        self.info: EngineInfo | None = None

    def __enter__(self) -> Self:
        try:
            self.info = self._runner.run(self._llm.start())
        except BaseException:
            self._runner.close()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            self._runner.run(self._llm.close())
        finally:
            self._runner.close()

    def render_chat(self, messages: list[dict[str, Any]]) -> str:
        """The prompt text of a conversation; raises InvalidRequestError when the model has no chat template."""
        return self._llm.render_chat(messages, add_generation_prompt=True)

    def ask(
        self,
        prompt: str,
        params: SamplingParams,
        answer: Answer,
        on_text: Callable[[str], None],
        *,
        add_special_tokens: bool = True,
    ) -> None:
        """Fill `answer`, calling `on_text` with each piece of text. After an interruption it holds what had come."""
        self._runner.run(self._ask(prompt, params, answer, on_text, add_special_tokens))

    async def _ask(
        self,
        prompt: str,
        params: SamplingParams,
        answer: Answer,
        on_text: Callable[[str], None],
        add_special_tokens: bool,
    ) -> None:
        started_s = time.monotonic()
        prepared = self._llm.prepare(prompt, params, add_special_tokens=add_special_tokens)
        answer.num_prompt_tokens = len(prepared.prompt_token_ids)
        async with aclosing(self._llm.stream(prepared)) as deltas:  # type: ignore[type-var]
            async for delta in deltas:
                if not answer.token_ids and delta.token_ids:
                    answer.first_token_s = time.monotonic() - started_s
                answer.token_ids += delta.token_ids
                answer.num_cached_tokens = max(answer.num_cached_tokens, delta.num_cached_tokens)
                answer.total_s = time.monotonic() - started_s
                answer.finish_reason, answer.stop_reason = delta.finish_reason, delta.stop_reason
                if delta.text:
                    answer.text += delta.text
                    on_text(delta.text)
