from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.text.byte_tokenizer import ByteTokenizer
from headrace.text.detokenizer import IncrementalDetokenizer
from headrace.text.tokenizer import Tokenizer
from tests.text.tiny_sentencepiece import sentencepiece_metadata

TOKENIZERS = {"byte-level": ByteTokenizer(), "byte-fallback": Tokenizer.from_gguf(sentencepiece_metadata())}


def streamed(tokenizer: Tokenizer, ids: list[int], sizes: list[int], **options: bool) -> list[str]:
    """Deltas for `ids` pushed in pieces of `sizes`, the rest at once."""
    detokenizer = IncrementalDetokenizer(tokenizer, **options)
    deltas, position = [], 0
    for size in [*sizes, len(ids)]:
        deltas.append(detokenizer.push(ids[position : position + size]))
        position += size
    return [*deltas, detokenizer.finish()]


@pytest.mark.parametrize("kind", TOKENIZERS)
@settings(max_examples=300)
@given(data=st.data())
def test_deltas_of_any_ids_add_up_to_the_whole_decode(kind: str, data: st.DataObject) -> None:
    tokenizer = TOKENIZERS[kind]
    ids = data.draw(st.lists(st.integers(0, tokenizer.vocab_size), max_size=40))
    sizes = data.draw(st.lists(st.integers(0, 4), max_size=40))
    skip, continuation = data.draw(st.booleans()), data.draw(st.booleans())
    deltas = streamed(tokenizer, ids, sizes, skip_special_tokens=skip, continuation=continuation)
    assert "".join(deltas) == tokenizer.decode(ids, skip, continuation=continuation)


@pytest.mark.parametrize("kind", TOKENIZERS)
@settings(max_examples=300)
@given(text=st.text(max_size=20), sizes=st.lists(st.integers(0, 3), max_size=80))
def test_whole_characters_stream_without_replacement_marks(kind: str, text: str, sizes: list[int]) -> None:
    tokenizer = TOKENIZERS[kind]
    deltas = streamed(tokenizer, tokenizer.encode(text, add_special_tokens=False), sizes)
    assert "".join(deltas) == text
    assert "\ufffd" in text or not any("\ufffd" in delta for delta in deltas)


@pytest.mark.parametrize("text", ["🙂🙂 日本語 café 👩‍👩‍👧‍👦", "\ufffd", " leading", "  two"])
@pytest.mark.parametrize("kind", TOKENIZERS)
def test_a_text_streams_byte_by_byte(kind: str, text: str) -> None:
    tokenizer = TOKENIZERS[kind]
    ids = tokenizer.encode(text, add_special_tokens=False)
    assert "".join(streamed(tokenizer, ids, [1] * len(ids))) == text


def test_the_demo_tokenizer_streams_hard_text(smollm2: Tokenizer) -> None:
    text = "Repeat: 🙂🙂 日本語 café 👩‍👩‍👧‍👦 𒀀"
    ids = smollm2.encode(text)
    deltas = streamed(smollm2, ids, [1] * len(ids))
    assert "".join(deltas) == text and not any("\ufffd" in d for d in deltas)


def test_an_unfinished_character_is_flushed_at_the_end() -> None:
    detokenizer = IncrementalDetokenizer(ByteTokenizer())
    assert detokenizer.push([0xF0, 0x9F]) == ""
    assert detokenizer.finish() == "\ufffd"


def test_a_lone_invalid_byte_comes_out_with_the_next_character() -> None:
    detokenizer = IncrementalDetokenizer(ByteTokenizer())
    assert [detokenizer.push([i]) for i in (0xE6, 0x61, 0xFF)] == ["", "\ufffda", "\ufffd"]


def test_special_tokens_can_be_kept() -> None:
    assert "".join(streamed(ByteTokenizer(), [104, 258], [1], skip_special_tokens=False)) == "h<|im_end|>"
