"""`POST /v1/chat/completions`."""

from __future__ import annotations

import time
from dataclasses import dataclass, field

from msgspec import UNSET, UnsetType
from starlette.requests import Request
from starlette.responses import Response

from headrace.server.generation.logprobs import chat_logprobs
from headrace.server.generation.prompts import chat_token_ids, prepare
from headrace.server.generation.running import Generation
from headrace.server.generation.sampling import refuse_unsupported
from headrace.server.parse import read_request
from headrace.server.routes.answer import answer
from headrace.server.schemas.chat import (
    AssistantMessage,
    ChatChoice,
    ChatChunkChoice,
    ChatCompletionChunk,
    ChatCompletionRequest,
    ChatCompletionResponse,
    ChatDelta,
    ChatLogprobs,
)
from headrace.server.schemas.common import Usage
from headrace.server.serving import CompletionDelta, Tokenizer, serving_of


async def chat_completions(request: Request) -> Response:
    """Answer a conversation."""
    serving = serving_of(request)
    arrived_s = serving.metrics.clock()
    body = await read_request(request, ChatCompletionRequest, serving.limits)
    model = serving.model(body.model)
    serving.require_ready()
    refuse_unsupported(body)
    prompt = await chat_token_ids(serving.llm, body, serving.limits)
    num_top = (body.top_logprobs or 0) if body.logprobs else None
    prepared = prepare(serving, body, [prompt], logprobs=num_top)
    shape = ChatShape(
        id="chatcmpl-" + prepared[0].request_id,
        model=model,
        created=int(time.time()),
        tokenizer=serving.llm.tokenizer,
        prompt=prompt,
        num_top_logprobs=num_top,
        with_token_ids=bool(body.return_token_ids),
        skip_special_tokens=body.skip_special_tokens is not False,
    )
    return await answer(request, body, Generation(serving, prepared, body.n or 1, arrived_s), shape)


@dataclass(slots=True, kw_only=True)
class ChatShape:
    """Writes chat completions. `num_top_logprobs` None leaves logprobs out."""

    id: str
    model: str
    created: int
    tokenizer: Tokenizer
    prompt: list[int]
    num_top_logprobs: int | None
    with_token_ids: bool
    skip_special_tokens: bool
    opened: set[int] = field(default_factory=set)
    told_prompt: bool = False

    def parts(self, choice: int, delta: CompletionDelta) -> list[ChatChunkChoice]:
        """The role, once per choice; then new content with its logprobs, ids and finish."""
        made = []
        if choice not in self.opened:
            self.opened.add(choice)
            made.append(ChatChunkChoice(index=choice, delta=ChatDelta(role="assistant", content="")))
        logprobs = None
        if self.num_top_logprobs is not None and delta.logprobs:
            logprobs = ChatLogprobs(
                chat_logprobs(
                    self.tokenizer,
                    delta.logprobs,
                    num_top=self.num_top_logprobs,
                    skip_special_tokens=self.skip_special_tokens,
                )
            )
        if delta.text or delta.finish_reason or logprobs or self.with_token_ids:
            made.append(
                ChatChunkChoice(
                    index=choice,
                    delta=ChatDelta(content=delta.text) if delta.text or logprobs else ChatDelta(),
                    logprobs=logprobs,
                    finish_reason=delta.finish_reason,  # type: ignore[arg-type]  # the others were raised as errors
                    stop_reason=delta.stop_reason if delta.finish_reason else UNSET,
                    token_ids=delta.token_ids if self.with_token_ids else UNSET,
                )
            )
        return made

    def chunk(self, parts: list[ChatChunkChoice], usage: Usage | UnsetType | None) -> ChatCompletionChunk:
        """One event."""
        tell_prompt = self.with_token_ids and not self.told_prompt
        self.told_prompt = True
        return ChatCompletionChunk(
            id=self.id,
            created=self.created,
            model=self.model,
            choices=parts,
            usage=usage,
            prompt_token_ids=self.prompt if tell_prompt else UNSET,
        )

    def whole(self, parts: list[list[ChatChunkChoice]], usage: Usage) -> ChatCompletionResponse:
        """All choices."""
        return ChatCompletionResponse(
            id=self.id,
            created=self.created,
            model=self.model,
            choices=[self._merged(of_choice) for of_choice in parts],
            usage=usage,
            prompt_token_ids=self.prompt if self.with_token_ids else UNSET,
        )

    def _merged(self, parts: list[ChatChunkChoice]) -> ChatChoice:
        logprobs = None
        if self.num_top_logprobs is not None:
            logprobs = ChatLogprobs([entry for part in parts if part.logprobs for entry in part.logprobs.content])
        last = parts[-1]
        return ChatChoice(
            index=last.index,
            message=AssistantMessage(content="".join(part.delta.content or "" for part in parts)),
            logprobs=logprobs,
            finish_reason=last.finish_reason,
            stop_reason=last.stop_reason or None,
            token_ids=[i for part in parts for i in part.token_ids or ()] if self.with_token_ids else UNSET,
        )
