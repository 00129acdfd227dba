"""Vocabulary: token id → the bytes it stands for.

Decoding is defined here once, on bytes: a text is the concatenated bytes of its tokens read as UTF-8, each
maximal invalid part becoming one U+FFFD. That definition can be followed token by token, so streamed and
whole decodes agree by construction. It equals the `tokenizers` decoders for every valid text; for byte-fallback
runs that are partly invalid `tokenizers` replaces the whole run, which no stream can know in time.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Literal

Scheme = Literal["byte_level", "sentencepiece"]
"""How a token's text spells bytes: GPT-2's 256 printable characters, or UTF-8 with U+2581 for space and <0xXX>."""

SPACE_MARK = "\u2581"
_BYTE_TOKEN = re.compile(r"<0x([0-9A-Fa-f]{2})>")
_NOT_A_BYTE = 0xFFFF


def byte_level_alphabet() -> list[str]:
    """Byte → the printable character that stands for it in a byte-level BPE (GPT-2's bytes_to_unicode)."""
    printable = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    characters: list[str] = []
    num_shifted = 0
    for byte in range(256):
        if byte in printable:
            characters.append(chr(byte))
        else:
            characters.append(chr(256 + num_shifted))
            num_shifted += 1
    return characters


def _to_bytes_table() -> dict[int, int]:
    """For str.translate: alphabet character → byte; the characters below 256 outside it → not a byte."""
    table = dict.fromkeys(range(256), _NOT_A_BYTE)
    table.update({ord(character): byte for byte, character in enumerate(byte_level_alphabet())})
    return table


class Vocabulary:
    """Texts and bytes of token ids.

    text_of: the vocabulary's own spelling of an id, or None where the id is unused.
    added: id → text of the tokens that are matched before the model splits the text; they stand for their own
        text in UTF-8.
    special: those of `added` that are control marks, not text.
    """

    def __init__(
        self,
        size: int,
        text_of: Callable[[int], str | None],
        added: Mapping[int, str],
        special: frozenset[int],
        scheme: Scheme,
    ) -> None:
        self.size = size
        self.special = special
        self.scheme = scheme
        self._text_of = text_of
        self._added = dict(added)
        self._bytes_of: dict[int, bytes] = {}
        self._table = _to_bytes_table() if scheme == "byte_level" else {}

    def bytes_of(self, token_id: int) -> bytes:
        """Bytes of one token; empty for an id the tokenizer does not use (models pad their vocabulary)."""
        found = self._bytes_of.get(token_id)
        if found is None:
            found = self._spell(token_id)
            if 0 <= token_id < self.size:
                self._bytes_of[token_id] = found
        return found

    def _spell(self, token_id: int) -> bytes:
        added = self._added.get(token_id)
        if added is not None:
            return added.encode("utf-8", "replace")
        text = self._text_of(token_id) if 0 <= token_id < self.size else None
        if text is None:
            return b""
        if self.scheme == "sentencepiece":
            byte = _BYTE_TOKEN.fullmatch(text)
            return bytes([int(byte[1], 16)]) if byte else text.replace(SPACE_MARK, " ").encode("utf-8", "replace")
        try:
            return text.translate(self._table).encode("latin-1")
        except UnicodeEncodeError:
            return text.encode("utf-8", "replace")
