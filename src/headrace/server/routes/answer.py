"""One path for streamed and whole answers: a whole answer is the merge of the parts a stream would have sent."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Protocol, TypeVar

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from headrace.server.errors import json_response
from headrace.server.generation.running import ClientGoneError, Generation, unless_gone
from headrace.server.schemas.common import GenerationRequest, Usage
from headrace.server.serving import CompletionDelta, serving_of
from headrace.server.sse import EventStream

CLIENT_CLOSED_REQUEST = 499
"""nginx's status for an answer that nobody waits for any more; seen in logs only."""


class Part(Protocol):
    """One choice's share of one event."""

    @property
    def index(self) -> int: ...


P = TypeVar("P", bound=Part)


class Shape(Protocol[P]):
    """How one API writes outputs."""

    def parts(self, choice: int, delta: CompletionDelta) -> list[P]:
        """What `delta` adds, in order; empty when there is nothing to tell."""
        ...

    def chunk(self, parts: list[P], usage: Usage | msgspec.UnsetType | None) -> msgspec.Struct:
        """One event of a stream."""
        ...

    def whole(self, parts: list[list[P]], usage: Usage) -> msgspec.Struct:
        """The answer that all parts, per choice, add up to."""
        ...


async def answer(request: Request, body: GenerationRequest, generation: Generation, shape: Shape[P]) -> Response:
    """Run `generation` and answer in `shape`, as a stream of events if `body` asks for one."""
    if body.stream:
        return EventStream(
            _events(generation, shape, body),
            keep_alive_s=serving_of(request).limits.keep_alive_s,
            request_id=request.scope["state"]["request_id"],
        )
    # Stop strings end a request at once only when its text is followed token by token.
    generation.whole = not body.stop
    try:
        return json_response(await unless_gone(request, _collect(generation, shape)))
    except ClientGoneError:
        return Response(status_code=CLIENT_CLOSED_REQUEST)


async def _collect(generation: Generation, shape: Shape[P]) -> msgspec.Struct:
    parts: list[list[P]] = [[] for _ in range(generation.num_choices)]
    async with aclosing(generation.deltas()) as deltas:
        async for choice, delta in deltas:
            for part in shape.parts(choice, delta):
                parts[part.index].append(part)
    return shape.whole(parts, generation.usage)


async def _events(
    generation: Generation, shape: Shape[P], body: GenerationRequest
) -> AsyncGenerator[msgspec.Struct, None]:
    options = body.stream_options
    with_usage = options is not None and bool(options.include_usage)
    continuous = with_usage and options is not None and bool(options.continuous_usage_stats)
    usage: Usage | msgspec.UnsetType | None = None if with_usage else msgspec.UNSET
    async with aclosing(generation.deltas()) as deltas:
        async for choice, delta in deltas:
            for part in shape.parts(choice, delta):
                yield shape.chunk([part], generation.usage if continuous else usage)
    if with_usage:
        yield shape.chunk([], generation.usage)
