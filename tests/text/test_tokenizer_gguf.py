from __future__ import annotations

import json
import logging
import time
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.core.errors import InvalidRequestError, ModelFileError, UnsupportedModelError
from headrace.text.tokenizer import Tokenizer
from headrace.text.vocabulary import byte_level_alphabet
from tests.text.tiny_sentencepiece import merge_by_score, sentencepiece_metadata

HARD_STRINGS = [
    "Hello world! Café déjà vu — 123 😊",
    " " * 20,
    "\t\ttabs\t",
    "line\r\nline\r\n\r\n",
    "1234567",
    "日本語 and кириллица, עברית; العربية ไทย 한국어",
    "👩‍👩‍👧‍👦 e\u0301 ﬁ ½ ² Ⅷ ٣",
    "<|im_start|>user\nit's we'll I'D<|im_end|>",
    "def f(x):\n    return x**2\n\n\n",
    "",
    "a\u00a0b\u2028c\u200bd\x00e",
]


def byte_level_metadata(**changes: Any) -> dict[str, Any]:
    """`tokenizer.ggml.*` keys of a byte-level BPE with two merges and an end token."""
    values = {
        "model": "gpt2",
        "pre": "gpt-2",
        "tokens": [*byte_level_alphabet(), "he", "hel", "<|im_end|>", "<tool>"],
        "token_type": [1] * 258 + [3, 4],
        "merges": ["h e", "he l"],
        "bos_token_id": 258,
        "eos_token_id": 258,
        **changes,
    }
    return {f"tokenizer.ggml.{name}": value for name, value in values.items() if value is not None}


def test_the_demo_model_encodes_the_capital_of_france(smollm2: Tokenizer) -> None:
    ids = smollm2.encode("The capital of France is")
    assert ids == [504, 3575, 282, 4649, 314]
    assert smollm2.decode([7042, 30, 198, 198, 504, 2988, 314, 42]) == " Paris.\n\nThe answer is:"


def test_the_demo_model_knows_its_ends_and_marks(smollm2: Tokenizer) -> None:
    assert smollm2.eos_token_ids == (2, 0)
    assert smollm2.bos_token_id == 1
    assert smollm2.vocab_size == 49152
    assert smollm2.special_tokens["eos_token"] == "<|im_end|>"
    assert smollm2.is_special(2) and not smollm2.is_special(504)
    assert smollm2.decode([504, 2]) == "The"
    assert smollm2.decode([504, 2], skip_special_tokens=False) == "The<|im_end|>"


def test_building_the_demo_tokenizer_costs_little(smollm2_metadata: dict[str, Any]) -> None:
    begin = time.process_time()
    Tokenizer.from_gguf(smollm2_metadata)
    assert time.process_time() - begin < 0.5  # about 0.05 on a quiet machine


def test_gguf_and_hugging_face_tokenizers_give_the_same_ids(
    smollm2: Tokenizer, smollm2_metadata: dict[str, Any], tmp_path: Path
) -> None:
    """The other one is written as SmolLM2's own tokenizer.json is: Digits and GPT-2's split."""
    tokens = list(smollm2_metadata["tokenizer.ggml.tokens"])
    special = [t for t, kind in zip(tokens, smollm2_metadata["tokenizer.ggml.token_type"], strict=True) if kind == 3]
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
    added = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}
    content = {
        "version": "1.0",
        "added_tokens": [{"id": tokens.index(t), "content": t, **added} for t in special],
        "pre_tokenizer": {
            "type": "Sequence",
            "pretokenizers": [{"type": "Digits", "individual_digits": True}, byte_level],
        },
        "decoder": byte_level,
        "model": {
            "type": "BPE",
            "vocab": {t: i for i, t in enumerate(tokens)},
            "merges": list(smollm2_metadata["tokenizer.ggml.merges"]),
        },
    }
    (tmp_path / "tokenizer.json").write_text(json.dumps(content), encoding="utf-8")
    other = Tokenizer.from_folder(tmp_path)
    for text in HARD_STRINGS:
        ours, theirs = smollm2.encode(text), other.encode(text)
        first = next((i for i, (a, b) in enumerate(zip(ours, theirs, strict=False)) if a != b), None)
        assert ours == theirs, f"{text!r}: first difference at token {first}"
        assert smollm2.decode(ours, False) == other.decode(theirs, False) == text


def test_every_text_comes_back(smollm2: Tokenizer) -> None:
    for text in HARD_STRINGS:
        ids = smollm2.encode(text)
        assert smollm2.decode(ids, skip_special_tokens=False) == text
        assert b"".join(map(smollm2.token_bytes, ids)) == text.encode()


def test_llama_style_pre_tokenizers_begin_with_bos_unless_the_file_says_otherwise() -> None:
    assert Tokenizer.from_gguf(byte_level_metadata(pre="llama-bpe")).encode("h")[0] == 258
    assert Tokenizer.from_gguf(byte_level_metadata(pre="llama-bpe", add_bos_token=False)).encode("h") == [104]
    assert Tokenizer.from_gguf(byte_level_metadata()).encode("h") == [104]
    assert Tokenizer.from_gguf(byte_level_metadata(add_eos_token=True)).encode("h") == [104, 258]


def test_two_bos_in_a_row_are_warned_of(caplog: pytest.LogCaptureFixture) -> None:
    tokenizer = Tokenizer.from_gguf(byte_level_metadata(add_bos_token=True))
    with caplog.at_level(logging.WARNING):
        assert tokenizer.encode("<|im_end|>h", add_special_tokens=False) == [258, 104]
        assert not caplog.records
        assert tokenizer.encode("<|im_end|>h") == [258, 258, 104]
    assert "two beginning-of-sequence tokens" in caplog.text


def test_user_defined_tokens_are_matched_and_are_text() -> None:
    tokenizer = Tokenizer.from_gguf(byte_level_metadata())
    ids = tokenizer.encode("hel<tool><|im_end|>")
    assert ids == [257, 259, 258]
    assert tokenizer.decode(ids) == "hel<tool>"


def test_an_unknown_pre_tokenizer_is_refused_with_the_known_ones() -> None:
    with pytest.raises(UnsupportedModelError, match=r"'nonesuch'; known: .*smollm"):
        Tokenizer.from_gguf(byte_level_metadata(pre="nonesuch"))
    with pytest.raises(UnsupportedModelError, match="does not say how"):
        Tokenizer.from_gguf(byte_level_metadata(pre=None))


def test_an_unknown_tokenizer_kind_is_refused() -> None:
    with pytest.raises(UnsupportedModelError, match=r"tokenizer\.ggml\.model.*'bert'"):
        Tokenizer.from_gguf(byte_level_metadata(model="bert"))


@pytest.mark.parametrize(
    ("changes", "key"),
    [
        ({"tokens": None}, "tokens"),
        ({"tokens": []}, "tokens"),
        ({"tokens": [1, 2]}, "tokens"),
        ({"tokens": "abc"}, "tokens"),
        ({"token_type": [1]}, "token_type"),
        ({"token_type": ["1"] * 260}, "token_type"),
        ({"merges": None}, "merges"),
        ({"merges": ["he"]}, "merges"),
        ({"merges": ["q qq"]}, "merges"),
        ({"eos_token_id": 260}, "eos_token_id"),
        ({"bos_token_id": -1}, "bos_token_id"),
        ({"bos_token_id": "1"}, "bos_token_id"),
    ],
)
def test_a_malformed_key_is_named(changes: dict[str, Any], key: str) -> None:
    with pytest.raises(ModelFileError, match=rf"tokenizer\.ggml\.{key}"):
        Tokenizer.from_gguf(byte_level_metadata(**changes))


@pytest.mark.parametrize(
    ("changes", "key"),
    [({"scores": None}, "scores"), ({"scores": [0.0]}, "scores"), ({"token_type": None}, "token_type")],
)
def test_a_malformed_sentencepiece_key_is_named(changes: dict[str, Any], key: str) -> None:
    with pytest.raises(ModelFileError, match=rf"tokenizer\.ggml\.{key}"):
        Tokenizer.from_gguf(sentencepiece_metadata(**changes))


def test_sentencepiece_begins_with_bos_and_a_space(sentencepiece: Tokenizer) -> None:
    ids = sentencepiece.encode("the")
    assert ids[0] == 1 and sentencepiece.token_text(ids[1]) == " the"
    assert sentencepiece.decode(ids) == "the"
    assert sentencepiece.decode(ids, continuation=True) == " the"


@given(st.text(alphabet="ehtanirog é日😊", max_size=24))
def test_sentencepiece_merges_as_its_scores_say(text: str) -> None:
    metadata = sentencepiece_metadata()
    tokenizer = _SENTENCEPIECE
    assert tokenizer.encode(text, add_special_tokens=False) == merge_by_score(text, metadata)
    assert tokenizer.decode(tokenizer.encode(text)) == text


_SENTENCEPIECE = Tokenizer.from_gguf(sentencepiece_metadata())


def test_a_lone_surrogate_is_the_callers_mistake(smollm2: Tokenizer) -> None:
    with pytest.raises(InvalidRequestError, match="surrogate"):
        smollm2.encode("a\ud800b")
    with pytest.raises(InvalidRequestError, match="must be a string"):
        smollm2.encode(3)  # type: ignore[arg-type]
