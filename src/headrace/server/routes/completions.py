"""`POST /v1/completions`."""

from __future__ import annotations

import time
from dataclasses import dataclass, field

from msgspec import UNSET, UnsetType
from starlette.requests import Request
from starlette.responses import Response

from headrace.core.outputs import TokenLogprobs
from headrace.server.generation.logprobs import CompletionLogprobsBuilder, extend
from headrace.server.generation.prompts import prepare, split_prompts, token_ids
from headrace.server.generation.running import Generation
from headrace.server.generation.sampling import max_tokens_of, refuse_unsupported
from headrace.server.parse import read_request
from headrace.server.routes.answer import answer
from headrace.server.schemas.common import Usage
from headrace.server.schemas.completions import (
    CompletionChoice,
    CompletionLogprobs,
    CompletionRequest,
    CompletionResponse,
)
from headrace.server.serving import CompletionDelta, Tokenizer, serving_of


async def completions(request: Request) -> Response:
    """Continue one prompt or several."""
    serving = serving_of(request)
    arrived_s = serving.metrics.clock()
    body = await read_request(request, CompletionRequest, serving.limits)
    model = serving.model(body.model)
    serving.require_ready()
    refuse_unsupported(body)
    llm = serving.llm
    texts = split_prompts(body.prompt, serving.limits)
    special = body.add_special_tokens is not False
    prompts = [await token_ids(llm, text, serving.limits, param="prompt", add_special_tokens=special) for text in texts]
    # An echo alone needs no logprobs of the prompt, but a request without output is run for nothing else.
    scores_prompt = body.echo and (body.logprobs is not None or max_tokens_of(body) == 0)
    prepared = prepare(
        serving,
        body,
        prompts,
        logprobs=body.logprobs,
        prompt_logprobs=(body.logprobs or 0) if scores_prompt else None,
    )
    generation = Generation(serving, prepared, body.n or 1, arrived_s)
    skip_special = body.skip_special_tokens is not False
    echoes = None
    if body.echo:
        echoes = [
            text if isinstance(text, str) else llm.tokenizer.decode(text, skip_special_tokens=skip_special)
            for text in texts
        ]
    shape = CompletionShape(
        id="cmpl-" + prepared[0].request_id,
        model=model,
        created=int(time.time()),
        tokenizer=llm.tokenizer,
        prompts=prompts,
        echoes=echoes,
        n=generation.n,
        with_logprobs=body.logprobs is not None,
        with_token_ids=bool(body.return_token_ids),
        skip_special_tokens=skip_special,
    )
    return await answer(request, body, generation, shape)


@dataclass(slots=True, kw_only=True)
class CompletionShape:
    """Writes text completions. `echoes` are the prompts' texts when the answer is to begin with them."""

    id: str
    model: str
    created: int
    tokenizer: Tokenizer
    prompts: list[list[int]]
    echoes: list[str] | None
    n: int
    with_logprobs: bool
    with_token_ids: bool
    skip_special_tokens: bool
    builders: dict[int, CompletionLogprobsBuilder] = field(default_factory=dict)
    opened: set[int] = field(default_factory=set)
    scores: dict[int, list[TokenLogprobs]] = field(default_factory=dict)
    waiting: list[tuple[int, CompletionDelta]] = field(default_factory=list)

    def parts(self, choice: int, delta: CompletionDelta) -> list[CompletionChoice]:
        """What is new of this choice, and of those that waited for it."""
        if self.echoes is None or not self.with_logprobs:
            return self._part(choice, delta, [])
        # The engine scores a prompt once, in its first choice; the others wait until it is done.
        first = choice - choice % self.n
        scores = self.scores.setdefault(first, [])
        scores += delta.prompt_logprobs
        is_scored = len(scores) >= len(self.prompts[choice // self.n]) - 1
        if choice != first:
            if is_scored:
                return self._part(choice, delta, scores)
            self.waiting.append((choice, delta))
            return []
        made = self._part(choice, delta, delta.prompt_logprobs)
        if is_scored and self.waiting:
            ready = [held for held in self.waiting if first <= held[0] < first + self.n]
            self.waiting = [held for held in self.waiting if held not in ready]
            for held_choice, held_delta in ready:
                made += self._part(held_choice, held_delta, scores)
        return made

    def _part(self, choice: int, delta: CompletionDelta, scores: list[TokenLogprobs]) -> list[CompletionChoice]:
        is_first = choice not in self.opened
        self.opened.add(choice)
        text = delta.text
        if is_first and self.echoes is not None:
            text = self.echoes[choice // self.n] + text
        logprobs = self._logprobs(choice, delta, scores, is_first) if self.with_logprobs else None
        if not (text or delta.finish_reason or (logprobs and logprobs.tokens) or self.with_token_ids):
            return []
        return [
            CompletionChoice(
                index=choice,
                text=text,
                logprobs=logprobs,
                finish_reason=delta.finish_reason,  # type: ignore[arg-type]  # the others were raised as errors
                stop_reason=delta.stop_reason,
                token_ids=delta.token_ids if self.with_token_ids else UNSET,
                prompt_token_ids=self.prompts[choice // self.n] if self.with_token_ids and is_first else UNSET,
            )
        ]

    def _logprobs(
        self, choice: int, delta: CompletionDelta, scores: list[TokenLogprobs], is_first: bool
    ) -> CompletionLogprobs:
        if is_first:
            self.builders[choice] = CompletionLogprobsBuilder(
                self.tokenizer, skip_special_tokens=self.skip_special_tokens
            )
        builder = self.builders[choice]
        if self.echoes is None:
            return builder.part(delta.logprobs)
        own_scores = scores if is_first or choice % self.n == 0 else []
        first_token_id = self.prompts[choice // self.n][0] if is_first else None
        return builder.part([*own_scores, *delta.logprobs], first_token_id)

    def chunk(self, parts: list[CompletionChoice], usage: Usage | UnsetType | None) -> CompletionResponse:
        """One event."""
        return CompletionResponse(id=self.id, created=self.created, model=self.model, choices=parts, usage=usage)

    def whole(self, parts: list[list[CompletionChoice]], usage: Usage) -> CompletionResponse:
        """All choices."""
        return self.chunk([self._merged(of_choice) for of_choice in parts], usage)

    def _merged(self, parts: list[CompletionChoice]) -> CompletionChoice:
        logprobs = None
        if self.with_logprobs:
            logprobs = CompletionLogprobs([], [], [], [])
            for part in parts:
                if part.logprobs is not None:
                    extend(logprobs, part.logprobs)
        last = parts[-1]
        return CompletionChoice(
            index=last.index,
            text="".join(part.text for part in parts),
            logprobs=logprobs,
            finish_reason=last.finish_reason,
            stop_reason=last.stop_reason,
            token_ids=[i for part in parts for i in part.token_ids or ()] if self.with_token_ids else UNSET,
            prompt_token_ids=parts[0].prompt_token_ids,
        )
