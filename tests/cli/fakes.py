"""A model that answers from a list, in the place of a Session."""

from collections.abc import Callable
from types import TracebackType
from typing import Any, Self

from headrace.cli.session import Answer
from headrace.config.engine import EngineConfig
from headrace.core.errors import ContextLengthError, InvalidRequestError
from headrace.core.params import SamplingParams


class FakeSession:
    """Says `pieces`; a piece "^C" is the user pressing Ctrl-C, "TOO LONG" a request that does not fit."""

    def __init__(self, pieces: list[str], *, has_template: bool = True) -> None:
        self.pieces, self.has_template = pieces, has_template
        self.prompts: list[str] = []
        self.params: list[SamplingParams] = []
        self.specials: list[bool] = []
        self.config: EngineConfig | None = None
        self.closed = False

    def __call__(self, config: EngineConfig) -> Self:
        self.config = config
        return self

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.closed = True

    def render_chat(self, messages: list[dict[str, Any]]) -> str:
        if not self.has_template:
            raise InvalidRequestError("the model has no chat template", param="messages")
        return "".join(f"<{m['role']}>{m['content']}" for m in messages)

    def ask(
        self,
        prompt: str,
        params: SamplingParams,
        answer: Answer,
        on_text: Callable[[str], None],
        *,
        add_special_tokens: bool = True,
    ) -> None:
        self.prompts.append(prompt)
        self.params.append(params)
        self.specials.append(add_special_tokens)
        for piece in self.pieces:
            if piece == "^C":
                raise KeyboardInterrupt
            if piece == "TOO LONG":
                raise ContextLengthError("the prompt has 9 tokens; the context is 8 tokens")
            answer.text += piece
            answer.token_ids.append(len(answer.token_ids))
            on_text(piece)
        answer.finish_reason = "stop"
