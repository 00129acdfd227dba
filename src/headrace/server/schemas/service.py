"""Models, tokens, versions, memory: the small endpoints' requests and responses."""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec
from msgspec import UNSET, Meta, UnsetType

from headrace.server.schemas.chat import ChatMessage, Tool
from headrace.server.schemas.common import ModelName, TemplateArguments, TokenId


class ModelCard(msgspec.Struct, kw_only=True):
    """A served model."""

    id: str
    object: Literal["model"] = "model"
    created: int
    owned_by: Literal["headrace"] = "headrace"
    root: str
    parent: None = None
    max_model_len: int
    """Tokens of prompt and output together."""


class ModelList(msgspec.Struct, kw_only=True):
    """All names that requests may use; they mean the same model."""

    object: Literal["list"] = "list"
    data: list[ModelCard]


class TokenizeRequest(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """A `prompt`, or `messages` to be rendered by the chat template first."""

    model: ModelName | None = None
    prompt: str | None = None
    messages: Annotated[list[ChatMessage], Meta(min_length=1, max_length=4096)] | None = None
    tools: Annotated[list[Tool], Meta(max_length=128)] | None = None
    add_generation_prompt: bool | None = None
    chat_template_kwargs: TemplateArguments | None = None
    chat_template: Annotated[str, Meta(description="Not accepted from requests.")] | None = None
    continue_final_message: bool | None = None
    add_special_tokens: bool | None = None
    """Default: true for a prompt; false for messages, whose template writes its own."""
    return_token_strs: bool | None = None


class TokenizeResponse(msgspec.Struct, kw_only=True):
    """Token ids, as a completion would get them."""

    count: int
    max_model_len: int
    tokens: list[int]
    token_strs: list[str] | UnsetType = UNSET


class DetokenizeRequest(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """Token ids to turn into text."""

    model: ModelName | None = None
    tokens: Annotated[list[TokenId], Meta(max_length=1 << 20)]
    skip_special_tokens: bool | None = None
    """Default: false."""


class DetokenizeResponse(msgspec.Struct):
    """The text."""

    prompt: str


class Health(msgspec.Struct):
    """Whether requests are answered."""

    status: Literal["ready"]


class Version(msgspec.Struct):
    """Of the package."""

    version: str


class MemoryRow(msgspec.Struct, kw_only=True):
    """One line of the memory table, in bytes."""

    name: str
    reserved_bytes: int
    committed_bytes: int
    resident_bytes: int
    note: str


class MemoryTable(msgspec.Struct, kw_only=True):
    """Where the engine's memory goes."""

    object: Literal["engine.memory"] = "engine.memory"
    lines: list[MemoryRow]
    num_kv_blocks: int
    num_free_kv_blocks: int
    kv_block_size: int
    """Tokens per block."""


class StartupPhase(msgspec.Struct):
    """One phase of a process's start; it begins where the one before it ended."""

    name: str
    seconds: float


class StartupProcess(msgspec.Struct):
    """One process, from its start to readiness."""

    name: str
    total_s: float
    phases: list[StartupPhase]


class Startup(msgspec.Struct, kw_only=True):
    """Where the start-up went. The engine process starts during the first phases of the server process."""

    object: Literal["engine.startup"] = "engine.startup"
    total_s: float
    """Of the server process, which waits for the engine."""
    processes: list[StartupProcess]
