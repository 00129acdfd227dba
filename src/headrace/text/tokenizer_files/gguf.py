"""Tokenizer from a GGUF file's metadata: byte-level BPE (`gpt2`) and SentencePiece BPE (`llama`).

Keys and token types follow the GGUF specification, section "Tokenizer".
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from headrace.core.errors import ModelFileError, UnsupportedModelError
from headrace.text.tokenizer import Tokenizer
from headrace.text.tokenizer_files.pre_tokenizers import find_split
from headrace.text.vocabulary import SPACE_MARK, Scheme, Vocabulary

if TYPE_CHECKING:
    import tokenizers

_PREFIX = "tokenizer.ggml."
_NORMAL, _UNKNOWN, _CONTROL, _USER_DEFINED, _UNUSED, _BYTE = 1, 2, 3, 4, 5, 6
_SPECIAL_NAMES = {"bos": "bos_token", "eos": "eos_token", "unknown": "unk_token", "padding": "pad_token"}
_END_IDS = ("eos", "eot", "eom")
_END_TEXTS = frozenset(
    {
        "<|im_end|>", "<|eot_id|>", "<|eom_id|>", "<|end_of_text|>", "<|endoftext|>", "<|end|>", "<|return|>",
        "<end_of_turn>", "<eos>", "</s>", "<EOT>", "_<EOT>", "<|end_of_turn|>", "<|end▁of▁sentence|>",
    }
)  # fmt: skip
"""Control tokens that end a turn in some family; files often name only one of theirs."""


def build(metadata: Mapping[str, Any]) -> Tokenizer:
    """See `Tokenizer.from_gguf`."""
    kind = metadata.get(_PREFIX + "model")
    texts = _list(metadata, "tokens", str)
    types = _list(metadata, "token_type", int, len(texts)) if _PREFIX + "token_type" in metadata else None
    if kind == "gpt2":
        backend, scheme, adds_bos = _byte_level(metadata, texts)
        adds_space = False
    elif kind == "llama":
        if types is None:
            raise ModelFileError(f"{_PREFIX}token_type is missing", param=_PREFIX + "token_type")
        adds_space = bool(metadata.get(_PREFIX + "add_space_prefix", True))
        backend, scheme, adds_bos = _sentencepiece(metadata, texts, types, adds_space), "sentencepiece", True
    else:
        raise UnsupportedModelError(
            f"{_PREFIX}model: unknown tokenizer kind {kind!r}; known: gpt2, llama", param=_PREFIX + "model"
        )

    ids = {name: _token_id(metadata, name, len(texts)) for name in (*_SPECIAL_NAMES, "eot", "eom")}
    added, special = _added_tokens(texts, types, ids.values())
    _register(backend, added, special)
    bos, eos = ids["bos"], ids["eos"]
    head = [bos] if bos is not None and metadata.get(_PREFIX + "add_bos_token", adds_bos) else []
    tail = [eos] if eos is not None and metadata.get(_PREFIX + "add_eos_token", False) else []

    def encode(text: str, add_special_tokens: bool) -> list[int]:
        found: list[int] = backend.encode(text, add_special_tokens=False).ids
        return [*head, *found, *tail] if add_special_tokens else found

    end_ids = [i for name in _END_IDS if (i := ids[name]) is not None]
    end_ids += sorted(i for i in special if texts[i] in _END_TEXTS)
    return Tokenizer(
        encode,
        Vocabulary(len(texts), texts.__getitem__, added, special, scheme),
        bos_token_id=bos,
        eos_token_ids=end_ids,
        special_tokens={_SPECIAL_NAMES[n]: texts[i] for n in _SPECIAL_NAMES if (i := ids[n]) is not None},
        strips_leading_space=adds_space,
    )


def _byte_level(metadata: Mapping[str, Any], texts: Sequence[str]) -> tuple[tokenizers.Tokenizer, Scheme, bool]:
    from tokenizers import Tokenizer as Backend
    from tokenizers.models import BPE
    from tokenizers.normalizers import NFC

    split = find_split(metadata.get(_PREFIX + "pre"))
    merges: list[tuple[str, str]] = []
    for i, merge in enumerate(_list(metadata, "merges", str)):
        left, _, right = merge.partition(" ")
        if not left or not right:
            raise ModelFileError(f"{_PREFIX}merges[{i}] is no pair: {merge!r}", param=_PREFIX + "merges")
        merges.append((left, right))
    backend = Backend(_bpe(BPE, _vocab(texts), merges, ignore_merges=split.whole_words))
    backend.pre_tokenizer = split.build()
    if split.composes:
        backend.normalizer = NFC()
    return backend, "byte_level", split.adds_bos


def _sentencepiece(
    metadata: Mapping[str, Any], texts: Sequence[str], types: Sequence[int], adds_space: bool
) -> tokenizers.Tokenizer:
    """SentencePiece merges by the score of the piece that results; ranking every possible pair by that score
    makes it an ordinary BPE."""
    from tokenizers import Tokenizer as Backend
    from tokenizers.models import BPE
    from tokenizers.normalizers import Normalizer, Prepend, Replace
    from tokenizers.normalizers import Sequence as Steps

    scores = _list(metadata, "scores", float, len(texts))
    pieces = {text for text, kind in zip(texts, types, strict=True) if kind in (_NORMAL, _USER_DEFINED)}
    ranked: list[tuple[float, str, str]] = []
    for text, kind, score in zip(texts, types, scores, strict=True):
        if kind == _NORMAL:
            ranked += [
                (-score, text[:i], text[i:]) for i in range(1, len(text)) if text[:i] in pieces and text[i:] in pieces
            ]
    ranked.sort(key=lambda entry: entry[0])
    unknown = _token_id(metadata, "unknown", len(texts))
    backend = Backend(
        _bpe(
            BPE,
            _vocab(texts),
            [(left, right) for _, left, right in ranked],
            byte_fallback=True,
            fuse_unk=True,
            unk_token=texts[unknown] if unknown is not None else None,
        )
    )
    steps: list[Normalizer] = [Prepend(SPACE_MARK)] if adds_space else []
    backend.normalizer = Steps([*steps, Replace(" ", SPACE_MARK)])
    return backend


def _bpe(model: Any, vocab: dict[str, int], merges: list[tuple[str, str]], **options: Any) -> Any:
    try:
        return model(vocab, merges, **options)
    except Exception as error:  # the binding raises bare Exception
        raise ModelFileError(f"{_PREFIX}merges do not fit {_PREFIX}tokens: {error}") from error


def _vocab(texts: Sequence[str]) -> dict[str, int]:
    return {text: i for i, text in enumerate(texts)}


def _added_tokens(
    texts: Sequence[str], types: Sequence[int] | None, named_ids: Iterable[int | None]
) -> tuple[dict[int, str], frozenset[int]]:
    """Tokens matched before splitting: control marks (special) and user-defined texts."""
    if types is None:
        special = {i for i in named_ids if i is not None}
        return {i: texts[i] for i in special}, frozenset(special)
    special = {i for i, kind in enumerate(types) if kind in (_CONTROL, _UNKNOWN)}
    added = sorted(special | {i for i, kind in enumerate(types) if kind == _USER_DEFINED})
    return {i: texts[i] for i in added}, frozenset(special)


def _register(backend: tokenizers.Tokenizer, added: Mapping[int, str], special: frozenset[int]) -> None:
    from tokenizers import AddedToken

    backend.add_tokens([AddedToken(text, special=i in special, normalized=False) for i, text in added.items() if text])


def _token_id(metadata: Mapping[str, Any], name: str, num_tokens: int) -> int | None:
    key = f"{_PREFIX}{name}_token_id"
    value = metadata.get(key)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value < num_tokens:
        raise ModelFileError(f"{key} must be an id below {num_tokens}, got {value!r}", param=key)
    return value


def _list(metadata: Mapping[str, Any], name: str, item: type, length: int | None = None) -> list[Any]:
    """A metadata array as a list of `item`, of the given length. Only its first element's type is looked at:
    arrays of a GGUF have one element type."""
    key = _PREFIX + name
    value: Any = metadata.get(key)
    values = value.tolist() if hasattr(value, "tolist") else value
    if not isinstance(values, list) or not values or not isinstance(values[0], item):
        raise ModelFileError(f"{key} is missing or no list of {item.__name__}", param=key)
    if length is not None and len(values) != length:
        raise ModelFileError(f"{key} has {len(values)} entries, {_PREFIX}tokens has {length}", param=key)
    return values
