"""A tiny SentencePiece vocabulary in GGUF's keys, and SentencePiece's merge loop as an oracle."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

SPACE = "\u2581"
_PIECES = [
    SPACE + "t", "he", SPACE + "a", "in", SPACE + "the", "re", "on", SPACE + "h", "er", "an", SPACE + "he",
    SPACE + "an", "ing", "ee", "the", "aa", "aaa", "nn", "tt", SPACE + SPACE,
]  # fmt: skip
_LETTERS = [SPACE, *"ehtanirog", "é", "日"]


def sentencepiece_metadata(**changes: Any) -> dict[str, Any]:
    """`tokenizer.ggml.*` keys: three control tokens, 256 byte tokens, 20 pieces by falling score, 12 characters."""
    tokens = ["<unk>", "<s>", "</s>", *(f"<0x{b:02X}>" for b in range(256)), *_PIECES, *_LETTERS]
    types = [2, 3, 3, *([6] * 256), *([1] * (len(_PIECES) + len(_LETTERS)))]
    scores = [0.0] * 259 + [-float(i) for i in range(len(_PIECES) + len(_LETTERS))]
    values = {
        "model": "llama",
        "tokens": tokens,
        "token_type": types,
        "scores": scores,
        "bos_token_id": 1,
        "eos_token_id": 2,
        "unknown_token_id": 0,
        **changes,
    }
    return {f"tokenizer.ggml.{name}": value for name, value in values.items() if value is not None}


def merge_by_score(text: str, metadata: dict[str, Any]) -> list[int]:
    """SentencePiece's BPE as published: merge the neighbours whose union scores highest, leftmost first."""
    tokens = metadata["tokenizer.ggml.tokens"]
    scores = metadata["tokenizer.ggml.scores"]
    ids = {token: i for i, token in enumerate(tokens) if metadata["tokenizer.ggml.token_type"][i] == 1}
    parts = list(SPACE + text.replace(" ", SPACE)) if text else []
    while True:
        unions = [(scores[ids[a + b]], -i) for i, (a, b) in enumerate(pairwise(parts)) if a + b in ids]
        if not unions:
            break
        i = -max(unions)[1]
        parts[i : i + 2] = [parts[i] + parts[i + 1]]
    found: list[int] = []
    for part in parts:
        found += [ids[part]] if part in ids else [3 + byte for byte in part.encode()]
    return found
