"""IncrementalDetokenizer: token ids → text deltas that add up to the whole decode."""

from __future__ import annotations

import codecs
from collections.abc import Iterable

from headrace.text.tokenizer import Tokenizer


class IncrementalDetokenizer:
    """Decodes one sequence piece by piece.

    For every way of splitting `ids` into pushes, the joined deltas (with `finish`) equal
    `tokenizer.decode(ids, skip_special_tokens, continuation=continuation)`. At most three bytes, the beginning
    of a character, are ever held back, so a push costs what its own tokens cost.
    """

    def __init__(self, tokenizer: Tokenizer, skip_special_tokens: bool = True, *, continuation: bool = False) -> None:
        self._tokenizer = tokenizer
        self._skip_special_tokens = skip_special_tokens
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._strip_next = tokenizer.strips_leading_space and not continuation

    def push(self, ids: Iterable[int]) -> str:
        """The text these tokens complete; empty while a character is unfinished."""
        tokenizer = self._tokenizer
        if self._skip_special_tokens:
            ids = (i for i in ids if not tokenizer.is_special(i))
        return self._strip(self._decoder.decode(b"".join(map(tokenizer.token_bytes, ids))))

    def finish(self) -> str:
        """What an unfinished character leaves behind: U+FFFD, or nothing."""
        return self._strip(self._decoder.decode(b"", final=True))

    def _strip(self, text: str) -> str:
        if self._strip_next and text:
            self._strip_next = False
            return text[1:] if text.startswith(" ") else text
        return text
