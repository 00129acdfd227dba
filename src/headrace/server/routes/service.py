"""Models, tokens, health, version, memory, metrics."""

from __future__ import annotations

import contextlib

from msgspec import UNSET
from starlette.requests import Request
from starlette.responses import Response

import headrace
from headrace.core.errors import EngineDeadError, InvalidRequestError
from headrace.observe.metrics import CONTENT_TYPE
from headrace.server.errors import json_response
from headrace.server.generation.logprobs import token_name
from headrace.server.generation.prompts import chat_token_ids, token_ids
from headrace.server.generation.sampling import refuse_unsupported
from headrace.server.parse import read_request
from headrace.server.schemas.service import (
    DetokenizeRequest,
    DetokenizeResponse,
    Health,
    MemoryRow,
    MemoryTable,
    ModelCard,
    ModelList,
    Startup,
    StartupPhase,
    StartupProcess,
    TokenizeRequest,
    TokenizeResponse,
    Version,
)
from headrace.server.serving import Serving, serving_of


def _card(serving: Serving, name: str) -> ModelCard:
    return ModelCard(
        id=name, created=serving.created, root=serving.llm.model_name, max_model_len=serving.llm.max_model_len
    )


async def list_models(request: Request) -> Response:
    """The served names."""
    serving = serving_of(request)
    serving.require_ready()
    return json_response(ModelList(data=[_card(serving, name) for name in serving.names]))


async def get_model(request: Request) -> Response:
    """One served name."""
    serving = serving_of(request)
    serving.require_ready()
    return json_response(_card(serving, serving.model(request.path_params["model"])))


async def tokenize(request: Request) -> Response:
    """Text or messages as token ids."""
    serving = serving_of(request)
    body = await read_request(request, TokenizeRequest, serving.limits)
    serving.model(body.model)
    serving.require_ready()
    refuse_unsupported(body)
    if (body.prompt is None) == (body.messages is None):
        raise InvalidRequestError("send either prompt or messages", param="prompt")
    if body.prompt is None:
        ids = await chat_token_ids(serving.llm, body, serving.limits)
    elif not body.prompt:
        ids = serving.llm.tokenizer.encode("", add_special_tokens=body.add_special_tokens is not False)
    else:
        ids = await token_ids(
            serving.llm,
            body.prompt,
            serving.limits,
            param="prompt",
            add_special_tokens=body.add_special_tokens is not False,
        )
    names = [token_name(serving.llm.tokenizer, i) for i in ids] if body.return_token_strs else UNSET
    return json_response(
        TokenizeResponse(count=len(ids), max_model_len=serving.llm.max_model_len, tokens=ids, token_strs=names)
    )


async def detokenize(request: Request) -> Response:
    """Token ids as text."""
    serving = serving_of(request)
    body = await read_request(request, DetokenizeRequest, serving.limits)
    serving.model(body.model)
    serving.require_ready()
    tokenizer = serving.llm.tokenizer
    if body.tokens and (highest := max(body.tokens)) >= tokenizer.vocab_size:
        raise InvalidRequestError(
            f"tokens has the id {highest}; this model has ids 0 to {tokenizer.vocab_size - 1}", param="tokens"
        )
    text = tokenizer.decode(body.tokens, skip_special_tokens=bool(body.skip_special_tokens))
    return json_response(DetokenizeResponse(text))


async def health(request: Request) -> Response:
    """200 when requests are answered; 503 while the engine starts and after it died."""
    serving_of(request).require_ready()
    return json_response(Health("ready"))


async def version(request: Request) -> Response:  # noqa: ARG001
    """The package's version."""
    return json_response(Version(headrace.__version__))


async def memory(request: Request) -> Response:
    """The engine's memory table."""
    serving = serving_of(request)
    serving.require_ready()
    stats = await serving.llm.stats()
    rows = [
        MemoryRow(
            name=line.name,
            reserved_bytes=line.reserved_bytes,
            committed_bytes=line.committed_bytes,
            resident_bytes=line.resident_bytes,
            note=line.note,
        )
        for line in stats.memory
    ]
    return json_response(
        MemoryTable(
            lines=rows,
            num_kv_blocks=stats.num_blocks,
            num_free_kv_blocks=stats.num_free_blocks,
            kv_block_size=stats.block_size,
        )
    )


async def startup(request: Request) -> Response:
    """Where the start-up went."""
    serving = serving_of(request)
    serving.require_ready()
    phases = serving.llm.startup_s
    processes = [
        StartupProcess(name, sum(seconds.values()), [StartupPhase(*phase) for phase in seconds.items()])
        for name, seconds in phases.items()
    ]
    return json_response(Startup(total_s=processes[0].total_s, processes=processes))


async def metrics(request: Request) -> Response:
    """Prometheus text."""
    serving = serving_of(request)
    stats = None
    if serving.llm.is_ready:
        with contextlib.suppress(EngineDeadError):  # a scrape has an answer in every state
            stats = await serving.llm.stats()
    text = serving.metrics.scrape(stats, is_ready=serving.llm.is_ready)
    return Response(text, headers={"content-type": CONTENT_TYPE})
