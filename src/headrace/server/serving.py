"""Serving: what every route needs, made once per application; and the engine's face that the server relies on."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

from headrace.config.engine import EngineConfig
from headrace.config.server import ServerConfig
from headrace.core.errors import EngineDeadError, ModelNotFoundError, nearest
from headrace.core.outputs import FinishReason, TokenLogprobs
from headrace.core.params import SamplingParams
from headrace.core.stats import EngineStats
from headrace.observe.metrics import Metrics
from headrace.server.limits import DEFAULT_LIMITS, Limits

if TYPE_CHECKING:
    from starlette.requests import Request


class Tokenizer(Protocol):
    """The part of `text.Tokenizer` that the server calls."""

    @property
    def vocab_size(self) -> int: ...

    def encode(self, text: str, add_special_tokens: bool = True) -> list[int]: ...

    def decode(self, ids: Sequence[int], skip_special_tokens: bool = True) -> str: ...

    def token_bytes(self, token_id: int) -> bytes: ...

    def token_text(self, token_id: int) -> str: ...

    def is_special(self, token_id: int) -> bool: ...


class PreparedRequest(Protocol):
    """A request that cannot be wrong any more."""

    @property
    def request_id(self) -> str: ...

    @property
    def prompt_token_ids(self) -> list[int]: ...


class CompletionDelta(Protocol):
    """What is new of one of a request's n completions."""

    @property
    def index(self) -> int: ...
    @property
    def text(self) -> str: ...
    @property
    def token_ids(self) -> list[int]: ...
    @property
    def logprobs(self) -> list[TokenLogprobs]: ...
    @property
    def prompt_logprobs(self) -> list[TokenLogprobs]: ...
    @property
    def finish_reason(self) -> FinishReason | None: ...
    @property
    def stop_reason(self) -> int | str | None: ...
    @property
    def num_cached_tokens(self) -> int: ...


class AsyncEngine(Protocol):
    """The part of `engine.AsyncLLM` that the server calls. Closing a stream aborts its request in the engine."""

    @property
    def tokenizer(self) -> Any: ...
    @property
    def chat_template(self) -> Any: ...
    @property
    def model_name(self) -> str: ...
    @property
    def max_model_len(self) -> int: ...
    @property
    def engine_config(self) -> EngineConfig: ...
    @property
    def is_ready(self) -> bool: ...
    @property
    def dead_reason(self) -> str | None: ...
    @property
    def startup_s(self) -> dict[str, dict[str, float]]: ...

    def prepare(
        self,
        prompt: list[int],
        params: SamplingParams | None = None,
        *,
        request_id: str | None = None,
        priority: int = 0,
        cache_salt: str | None = None,
    ) -> Any: ...

    def stream(
        self, prepared: Any, *, whole: bool = False, on_tokens: Callable[[int, int], None] | None = None
    ) -> AsyncIterator[Any]: ...

    async def stats(self) -> EngineStats: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Serving:
    """One engine behind one HTTP application."""

    llm: AsyncEngine
    config: ServerConfig
    names: tuple[str, ...]
    """The names that requests may use; the first one is what responses say."""
    metrics: Metrics
    limits: Limits = DEFAULT_LIMITS
    created: int = field(default_factory=lambda: int(time.time()))

    def model(self, asked: str | None) -> str:
        """The name to answer with: the asked one, or the first when none is asked. Raises ModelNotFoundError."""
        if asked is None:
            return self.names[0]
        if asked in self.names:
            return asked
        guess = nearest(asked, self.names)
        hint = f"did you mean {guess!r}?" if guess else f"this server has {', '.join(map(repr, self.names))}"
        raise ModelNotFoundError(f"the model {asked[:200]!r} does not exist here; {hint}")

    def require_ready(self) -> None:
        """Raise EngineDeadError while the engine starts, and after it died."""
        if not self.llm.is_ready:
            reason = self.llm.dead_reason
            raise EngineDeadError(
                f"the engine is not running any more: {reason}" if reason else "the engine is starting; try again soon",
                code="engine_dead" if reason else "engine_starting",
            )


def serving_of(request: Request) -> Serving:
    """The Serving of the application that got `request`."""
    serving: Serving = request.app.state.serving
    return serving
