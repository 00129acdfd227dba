"""Limits: everything the server refuses for its size, in one struct. Limits of single fields are in the schemas."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Sizes of one request. What exceeds them is refused before it costs memory or time."""

    max_body_bytes: int = 16 << 20
    """A longer body is answered 413 without being read to its end."""
    max_json_depth: int = 100
    """Objects and arrays inside one another."""
    max_json_containers: int = 200_000
    """Objects and arrays in one body, strings' brackets not counted."""
    max_key_chars: int = 1024
    max_choices: int = 256
    """Prompts times n of one request."""
    max_prompt_chars_per_token: int = 64
    """A text longer than this many characters per token of context is refused before it is tokenized."""
    max_header_bytes: int = 64 << 10
    max_request_id_chars: int = 128
    keep_alive_s: float = 15.0
    """A silent event stream gets a comment line this often, so that proxies keep it open."""
    inline_chars: int = 16 << 10
    """Texts up to this length are rendered and tokenized on the event loop, longer ones in a thread."""


DEFAULT_LIMITS = Limits()
