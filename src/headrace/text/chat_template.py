"""ChatTemplate: messages → prompt text, by the model's own Jinja template."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from datetime import datetime
from typing import TYPE_CHECKING, Any, NamedTuple

from headrace.core.errors import InvalidRequestError
from headrace.text.messages import normalise_messages

if TYPE_CHECKING:
    from jinja2 import Template

MAX_TEMPLATE_CHARS = 1 << 20
MAX_OUTPUT_CHARS = 1 << 23
TIME_LIMIT_S = 5.0

RESERVED_VARIABLES = frozenset(
    {
        "messages",
        "tools",
        "add_generation_prompt",
        "continue_final_message",
        "bos_token",
        "eos_token",
        "unk_token",
        "pad_token",
    }
)
"""Names a caller's `chat_template_kwargs` may not set."""
_NEEDLE = "headrace-needle"


class _CallStyle(NamedTuple):
    """How a template wants messages with tool calls."""

    empty_content: str | None
    """What stands for no content."""
    arguments_as_text: bool
    """Arguments as a string of JSON, not as an object."""


_CALL_STYLES = (_CallStyle("", False), _CallStyle("", True), _CallStyle(None, False), _CallStyle(None, True))


def check_variables(variables: object) -> dict[str, Any]:
    """`chat_template_kwargs` as a caller sent them, fit for `ChatTemplate.render(messages, **variables)`.

    Raises InvalidRequestError, with a path, when they are no object or set a reserved name.
    """
    if variables is None:
        return {}
    if not isinstance(variables, dict):
        raise InvalidRequestError("chat_template_kwargs must be an object", param="chat_template_kwargs")
    for name in variables:
        if name in RESERVED_VARIABLES:
            raise InvalidRequestError(
                f"chat_template_kwargs may not set {name!r}", param=f"chat_template_kwargs.{name}"
            )
    return variables


class ChatTemplate:
    """A compiled chat template.

    Compiled at the first render and kept. Templates differ in two things messages alone do not tell, and are
    tried once on a small example to find out: whether content is a string or a list of parts, and whether tool
    call arguments are objects or strings.

    source: Jinja text, in the dialect of Hugging Face's `apply_chat_template`.
    special_tokens: `bos_token`, `eos_token`, … → text, visible to the template.
    time_limit_s, max_output_chars: bounds of one render.
    now: the clock behind `strftime_now`.
    """

    def __init__(
        self,
        source: str,
        special_tokens: Mapping[str, str] | None = None,
        *,
        time_limit_s: float = TIME_LIMIT_S,
        max_output_chars: int = MAX_OUTPUT_CHARS,
        now: Callable[[], datetime] = datetime.now,
    ) -> None:
        if len(source) > MAX_TEMPLATE_CHARS:
            raise InvalidRequestError(
                f"the chat template has {len(source)} characters, {MAX_TEMPLATE_CHARS} are allowed",
                param="chat_template",
            )
        self.source = source
        self._special_tokens = dict(special_tokens or {})
        self._time_limit_s = time_limit_s
        self._max_output_chars = max_output_chars
        self._now = now
        self._template: Template | None = None
        self._content_as_parts: bool | None = None
        self._call_style: _CallStyle | None = None

    def render(
        self,
        messages: list[dict[str, Any]],
        /,
        *,
        tools: list[dict[str, Any]] | None = None,
        add_generation_prompt: bool = True,
        continue_final_message: bool = False,
        **variables: Any,
    ) -> str:
        """The prompt for `messages`, after `normalise_messages`; encode it without special tokens.

        add_generation_prompt: end with the beginning of the assistant's turn.
        continue_final_message: end inside the last message, so that the model goes on with it.
        variables: further names the template sees.
        Raises InvalidRequestError with the path of what is wrong in `messages`, with param `messages` when the
        template fails, refuses or goes past a limit (code `template_limit`), and with param
        `chat_template` when it does not compile or `chat_template_kwargs` for a reserved name.
        """
        check_variables(variables)
        if continue_final_message and add_generation_prompt:
            raise InvalidRequestError(
                "continue_final_message and add_generation_prompt exclude each other", param="continue_final_message"
            )
        messages = normalise_messages(messages)
        deadline = time.monotonic() + self._time_limit_s
        prompt = self._run(self._fitted(messages, deadline), tools, add_generation_prompt, variables, deadline)
        return _cut_after(prompt, messages) if continue_final_message else prompt

    def _fitted(self, messages: list[dict[str, Any]], deadline: float) -> list[dict[str, Any]]:
        """`messages` the way this template wants them."""
        if any(m.get("tool_calls") for m in messages):
            if self._call_style is None:
                self._call_style = self._find_call_style(deadline)
            messages = [_with_style(m, self._call_style) if m.get("tool_calls") else m for m in messages]
        if self._content_as_parts is None:
            self._content_as_parts = self._wants_parts(deadline)
        return [_with_parts(m) for m in messages] if self._content_as_parts else messages

    def _wants_parts(self, deadline: float) -> bool:
        """True when content as a string is lost and content as parts is not."""
        message = {"role": "user", "content": _NEEDLE}
        return _NEEDLE not in self._try([message], deadline) and _NEEDLE in self._try([_with_parts(message)], deadline)

    def _find_call_style(self, deadline: float) -> _CallStyle:
        call = {"id": "call00000", "type": "function", "function": {"name": "f", "arguments": {"key": _NEEDLE}}}
        messages: list[dict[str, Any]] = [
            {"role": "user", "content": "x"},
            {"role": "assistant", "content": None, "tool_calls": [call]},
        ]
        for style in _CALL_STYLES:
            rendered = self._try([messages[0], _with_style(messages[1], style)], deadline)
            if _NEEDLE in rendered and f"'{_NEEDLE}'" not in rendered and f'\\"{_NEEDLE}' not in rendered:
                return style
        return _CALL_STYLES[0]

    def _try(self, messages: list[dict[str, Any]], deadline: float) -> str:
        """The rendered example, or nothing where the template does not take it; limits are no answer."""
        try:
            return self._run(messages, None, False, {}, deadline)
        except InvalidRequestError as error:
            if error.param == "messages" and error.code is None:
                return ""
            raise

    def _run(
        self,
        messages: list[dict[str, Any]],
        tools: list[dict[str, Any]] | None,
        add_generation_prompt: bool,
        variables: Mapping[str, Any],
        deadline: float,
    ) -> str:
        from headrace.text.template_sandbox.limits import BUDGET, Budget, LimitError

        template = self._template
        if template is None:
            template = self._template = self._compile()
        budget = Budget(deadline)
        names = {
            **self._special_tokens,
            **variables,
            "messages": list(messages),
            "tools": tools,
            "add_generation_prompt": add_generation_prompt,
            BUDGET: budget,
        }
        pieces: list[str] = []
        num_chars = 0
        try:
            for piece in template.generate(names):
                num_chars += len(piece)
                if num_chars > self._max_output_chars:
                    raise LimitError(f"the template writes more than {self._max_output_chars} characters")
                budget.check_time()
                pieces.append(piece)
        except LimitError as error:
            raise InvalidRequestError(
                f"the chat template went past a limit: {_reason(error)}", param="messages", code="template_limit"
            ) from error
        except Exception as error:  # a template can raise whatever Python can
            raise InvalidRequestError(
                f"the chat template refused the messages: {_reason(error)}", param="messages"
            ) from error
        return "".join(pieces)

    def _compile(self) -> Template:
        from headrace.text.template_sandbox.environment import TemplateEnvironment

        try:
            return TemplateEnvironment(self._now).from_string(self.source)
        except Exception as error:  # bad syntax, but also recursion in the parser and what constants do
            raise InvalidRequestError(
                f"the chat template does not compile: {_reason(error)}", param="chat_template"
            ) from error


def _with_style(message: dict[str, Any], style: _CallStyle) -> dict[str, Any]:
    from json import dumps

    content = style.empty_content if message.get("content") is None else message["content"]
    calls = message["tool_calls"]
    if style.arguments_as_text:
        calls = [
            {**c, "function": {**c["function"], "arguments": dumps(c["function"]["arguments"], ensure_ascii=False)}}
            for c in calls
        ]
    return {**message, "content": content, "tool_calls": calls}


def _with_parts(message: dict[str, Any]) -> dict[str, Any]:
    content = message.get("content")
    return {**message, "content": [{"type": "text", "text": content}]} if isinstance(content, str) else message


def _cut_after(prompt: str, messages: Iterable[Mapping[str, Any]]) -> str:
    """`prompt` up to the end of the last message's content."""
    content = str(list(messages)[-1].get("content") or "").strip()
    position = prompt.rfind(content) if content else -1
    if position < 0:
        raise InvalidRequestError(
            "the last message cannot be continued: the chat template does not show it as it is",
            param="continue_final_message",
        )
    return prompt[: position + len(content)]


def _reason(error: Exception) -> str:
    line = getattr(error, "lineno", None)
    reason = "nested too deeply" if isinstance(error, RecursionError) else str(error) or type(error).__name__
    return f"{reason[:500]} (line {line})" if line else reason[:500]
