"""Tokenizer: text → token ids → text, whatever file it was built from."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from headrace.core.errors import InvalidRequestError
from headrace.text.vocabulary import Vocabulary

_log = logging.getLogger(__name__)

Encoder = Callable[[str, bool], list[int]]
"""(text, add special tokens) → token ids."""


class Tokenizer:
    """Encodes and decodes; knows the ids that begin and end a sequence.

    Built by `from_gguf` or `from_folder`; immutable, usable from several threads.
    """

    def __init__(
        self,
        encoder: Encoder,
        vocabulary: Vocabulary,
        *,
        bos_token_id: int | None = None,
        eos_token_ids: Iterable[int] = (),
        special_tokens: Mapping[str, str] | None = None,
        strips_leading_space: bool = False,
    ) -> None:
        self._encoder = encoder
        self._vocabulary = vocabulary
        self.bos_token_id = bos_token_id
        self.eos_token_ids: tuple[int, ...] = tuple(dict.fromkeys(eos_token_ids))
        """Ids that end the model's turn; the first is the tokenizer's own end-of-sequence token."""
        self.special_tokens: dict[str, str] = dict(special_tokens or {})
        """`bos_token`, `eos_token`, `unk_token`, `pad_token` → text, for templates; absent ones are left out."""
        self.strips_leading_space = strips_leading_space
        """A text's first word is spelled with a space that `decode` takes away again (SentencePiece)."""

    @classmethod
    def from_gguf(cls, metadata: Mapping[str, Any]) -> Tokenizer:
        """Build from the `tokenizer.ggml.*` keys of a GGUF file.

        Raises ModelFileError (naming the key) and UnsupportedModelError (unknown kind or pre-tokenizer).
        """
        from headrace.text.tokenizer_files.gguf import build

        return build(metadata)

    @classmethod
    def from_folder(cls, path: str | Path) -> Tokenizer:
        """Build from `tokenizer.json`, `tokenizer_config.json` and `generation_config.json` in a folder.

        Raises ModelFileError (missing or malformed file) and UnsupportedModelError (unknown decoder).
        """
        from headrace.text.tokenizer_files.folder import build

        return build(Path(path))

    @property
    def vocab_size(self) -> int:
        """Number of ids the tokenizer knows; a model's embedding may be padded beyond it."""
        return self._vocabulary.size

    def encode(self, text: str, add_special_tokens: bool = True) -> list[int]:
        """Token ids of `text`. Texts of special tokens inside it become those tokens.

        `add_special_tokens=False` is right for rendered chat templates, which write their own marks.
        Warns when the result begins with two beginning-of-sequence tokens.
        Raises InvalidRequestError if `text` is no string or holds a lone surrogate.
        """
        try:
            ids = self._encoder(text, add_special_tokens)
        except (TypeError, UnicodeEncodeError) as error:
            if not isinstance(text, str):
                raise InvalidRequestError(f"text must be a string, not {type(text).__name__}") from error
            raise InvalidRequestError("text holds a lone surrogate, which is no character") from error
        if add_special_tokens and len(ids) > 1 and ids[0] == ids[1] == self.bos_token_id:
            _log.warning(
                "the prompt begins with two beginning-of-sequence tokens: "
                "it spells one itself, so encode it with add_special_tokens=False"
            )
        return ids

    def decode(self, ids: Iterable[int], skip_special_tokens: bool = True, *, continuation: bool = False) -> str:
        """Text of `ids`; invalid UTF-8 becomes U+FFFD, ids without a token become nothing.

        continuation: the ids go on after a prompt, so a leading space belongs to the text.
        """
        if skip_special_tokens:
            special = self._vocabulary.special
            ids = (i for i in ids if i not in special)
        text = b"".join(map(self._vocabulary.bytes_of, ids)).decode("utf-8", "replace")
        return text[1:] if self.strips_leading_space and not continuation and text.startswith(" ") else text

    def token_bytes(self, token_id: int) -> bytes:
        """Bytes the token stands for, special tokens included; part of a character is possible."""
        return self._vocabulary.bytes_of(token_id)

    def token_text(self, token_id: int) -> str:
        """The token's bytes as text, U+FFFD where they are no whole character."""
        return self._vocabulary.bytes_of(token_id).decode("utf-8", "replace")

    def is_special(self, token_id: int) -> bool:
        """True for control marks that `skip_special_tokens` leaves out."""
        return token_id in self._vocabulary.special
