"""`/v1/chat/completions`: request, response and chunk."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec
from msgspec import UNSET, Meta, UnsetType

from headrace.server.schemas.common import (
    GenerationRequest,
    ShortText,
    TemplateArguments,
    TokenCount,
    TopLogprobs,
    Usage,
)

FunctionName = Annotated[str, Meta(min_length=1, max_length=256)]


class ContentPart(msgspec.Struct, forbid_unknown_fields=True, kw_only=True, omit_defaults=True):
    """A part of a message's content. Only text is supported yet; other kinds are known by name and refused."""

    type: ShortText
    text: str | None = None
    refusal: str | None = None
    image_url: Any = None
    video_url: Any = None
    audio_url: Any = None
    input_audio: Any = None
    file: Any = None


class FunctionCall(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """The function an assistant called; `arguments` is a JSON object as text."""

    name: FunctionName
    arguments: str = "{}"


class ToolCall(msgspec.Struct, forbid_unknown_fields=True, kw_only=True, omit_defaults=True):
    """A call in an assistant's message."""

    function: FunctionCall
    id: ShortText | None = None
    type: Literal["function"] | None = None
    index: Annotated[int, Meta(ge=0, le=1 << 16)] | None = None


class ChatMessage(msgspec.Struct, forbid_unknown_fields=True, kw_only=True, omit_defaults=True):
    """One message of a conversation. What an answer of ours carries can be sent back unchanged."""

    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: str | Annotated[list[ContentPart], Meta(max_length=1024)] | UnsetType | None = UNSET
    name: ShortText | None = None
    tool_calls: Annotated[list[ToolCall], Meta(max_length=128)] | None = None
    tool_call_id: ShortText | None = None
    reasoning_content: str | None = None
    reasoning: str | None = None
    refusal: str | None = None
    annotations: Annotated[list[Any], Meta(max_length=0)] | None = None
    audio: None = None
    function_call: None = None


class FunctionDefinition(msgspec.Struct, forbid_unknown_fields=True, kw_only=True, omit_defaults=True):
    """A function the model may call."""

    name: FunctionName
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None


class Tool(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """A tool; only functions exist."""

    type: Literal["function"]
    function: FunctionDefinition


class ChatCompletionRequest(GenerationRequest, forbid_unknown_fields=True, kw_only=True):
    """A conversation to continue."""

    messages: Annotated[list[ChatMessage], Meta(min_length=1, max_length=4096)]
    max_tokens: TokenCount | None = None
    """Left out or null, the rest of the context. `max_completion_tokens` wins over it."""
    logprobs: bool | None = None
    top_logprobs: TopLogprobs | None = None
    tools: Annotated[list[Tool], Meta(max_length=128)] | None = None
    """Rendered by the chat template; calls in the output are not parsed yet."""
    tool_choice: Annotated[str | dict[str, Any], Meta(description='"auto" or "none" yet.')] | None = None
    parallel_tool_calls: bool | None = None
    add_generation_prompt: bool | None = None
    continue_final_message: bool | None = None
    """Go on with the last message, instead of answering it."""
    chat_template_kwargs: TemplateArguments | None = None
    chat_template: Annotated[str, Meta(description="Not accepted from requests.")] | None = None
    prompt_cache_options: dict[str, Any] | None = None
    modalities: Annotated[list[ShortText], Meta(max_length=8, description='Only ["text"].')] | None = None

    audio: Annotated[dict[str, Any], Meta(description="Not supported.")] | None = None
    functions: Annotated[list[Any], Meta(description="Not supported: use tools.")] | None = None
    function_call: Annotated[str | dict[str, Any], Meta(description="Not supported: use tool_choice.")] | None = None
    moderation: Annotated[Any, Meta(description="Not supported.")] = None
    prediction: Annotated[dict[str, Any], Meta(description="Not supported yet.")] | None = None
    reasoning_effort: Annotated[str, Meta(description="Not supported yet.")] | None = None
    verbosity: Annotated[str, Meta(description="Not supported.")] | None = None
    web_search_options: Annotated[dict[str, Any], Meta(description="Not supported.")] | None = None


class TokenLogprob(msgspec.Struct):
    """One alternative at a position. `bytes` is null for special tokens, which are no text."""

    token: str
    logprob: float
    bytes: list[int] | None


class ContentLogprob(msgspec.Struct):
    """A sampled token, and the likeliest ones at its position (the sampled one is always among them)."""

    token: str
    logprob: float
    bytes: list[int] | None
    top_logprobs: list[TokenLogprob]


class ChatLogprobs(msgspec.Struct):
    """One entry per token of the answer."""

    content: list[ContentLogprob]
    refusal: None = None


class AssistantMessage(msgspec.Struct, kw_only=True):
    """The answer."""

    role: Literal["assistant"] = "assistant"
    content: str
    refusal: None = None


class ChatChoice(msgspec.Struct, kw_only=True):
    """One answer."""

    index: int
    message: AssistantMessage
    logprobs: ChatLogprobs | None = None
    finish_reason: Literal["stop", "length"] | None = None
    stop_reason: int | str | None = None
    token_ids: list[int] | UnsetType = UNSET


class ChatCompletionResponse(msgspec.Struct, kw_only=True):
    """All answers."""

    id: str
    object: Literal["chat.completion"] = "chat.completion"
    created: int
    model: str
    choices: list[ChatChoice]
    usage: Usage
    prompt_token_ids: list[int] | UnsetType = UNSET


class ChatDelta(msgspec.Struct, kw_only=True):
    """What is new of an answer."""

    role: Literal["assistant"] | UnsetType = UNSET
    content: str | UnsetType = UNSET


class ChatChunkChoice(msgspec.Struct, kw_only=True):
    """One answer's share of a chunk. Exactly one chunk per answer has a finish_reason, its last."""

    index: int
    delta: ChatDelta
    logprobs: ChatLogprobs | None = None
    finish_reason: Literal["stop", "length"] | None = None
    stop_reason: int | str | UnsetType | None = UNSET
    token_ids: list[int] | UnsetType = UNSET


class ChatCompletionChunk(msgspec.Struct, kw_only=True):
    """One event of a stream."""

    id: str
    object: Literal["chat.completion.chunk"] = "chat.completion.chunk"
    created: int
    model: str
    choices: list[ChatChunkChoice]
    usage: Usage | UnsetType | None = UNSET
    prompt_token_ids: list[int] | UnsetType = UNSET
