from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from headrace.core.params import SamplingParams
from headrace.text.byte_tokenizer import ByteTokenizer
from headrace.text.stream import TextDelta, TextStream
from headrace.text.tokenizer import Tokenizer
from tests.text.tiny_sentencepiece import sentencepiece_metadata

BYTES = ByteTokenizer()


def test_text_without_stops_passes_through() -> None:
    stream = TextStream(BYTES, SamplingParams())
    assert stream.push(BYTES.encode("hé")[:2]) == TextDelta("h", None, 2)
    assert stream.push([0xA9], final=True) == TextDelta("é", None, 1)


def test_an_unfinished_character_comes_out_at_the_end() -> None:
    assert TextStream(BYTES, SamplingParams()).push([104, 0xC3], final=True).text == "h\ufffd"
    assert TextStream(BYTES, SamplingParams(stop="x")).push([104, 0xC3], final=True).text == "h\ufffd"


def test_tokens_after_the_stop_are_not_used() -> None:
    stream = TextStream(BYTES, SamplingParams(stop=["lo"]))
    assert stream.push(BYTES.encode("hel")) == TextDelta("he", None, 3)
    assert stream.push(BYTES.encode("o world")) == TextDelta("", "lo", 1)


def test_a_half_match_is_flushed_when_the_output_ends() -> None:
    stream = TextStream(BYTES, SamplingParams(stop=["lo!"]))
    assert stream.push(BYTES.encode("hello")) == TextDelta("hel", None, 5)
    assert stream.push([], final=True) == TextDelta("lo", None, 0)


def test_a_match_that_waited_is_found_at_the_end() -> None:
    stream = TextStream(BYTES, SamplingParams(stop=["abcd", "bc"]))
    assert stream.push(BYTES.encode("abc"), final=True) == TextDelta("a", "bc", 3)


def test_a_replacement_mark_at_the_end_can_complete_a_stop() -> None:
    stream = TextStream(BYTES, SamplingParams(stop=["h\ufffd"]))
    assert stream.push([104, 0xC3], final=True) == TextDelta("", "h\ufffd", 2)


def test_the_end_token_is_no_text() -> None:
    kept = SamplingParams(skip_special_tokens=False)
    assert TextStream(BYTES, kept).push([104, 258], final=True) == TextDelta("h", None, 2)
    assert TextStream(BYTES, SamplingParams(stop_token_ids=[105])).push([104, 105], final=True).text == "h"


def test_the_end_token_is_text_when_asked_for_or_ignored() -> None:
    asked = SamplingParams(stop_token_ids=[105], include_stop_str_in_output=True)
    assert TextStream(BYTES, asked).push([104, 105], final=True).text == "hi"
    ignored = SamplingParams(ignore_eos=True, skip_special_tokens=False)
    assert TextStream(BYTES, ignored).push([258, 258], final=True).text == "<|im_end|><|im_end|>"


def test_a_completion_keeps_the_space_of_its_first_word() -> None:
    tokenizer = Tokenizer.from_gguf(sentencepiece_metadata())
    ids = tokenizer.encode("the", add_special_tokens=False)
    assert TextStream(tokenizer, SamplingParams()).push(ids, final=True).text == " the"


@given(
    text=st.text(alphabet="aé😊b", max_size=12),
    stops=st.lists(st.text(alphabet="aéb", min_size=1, max_size=3), max_size=3),
    sizes=st.lists(st.integers(0, 5), max_size=20),
)
def test_any_split_of_the_ids_gives_the_same_text(text: str, stops: list[str], sizes: list[int]) -> None:
    ids = BYTES.encode(text)
    params = SamplingParams(stop=stops)
    whole = TextStream(BYTES, params).push(ids, final=True)
    stream, position, joined, used = TextStream(BYTES, params), 0, "", 0
    stop = None
    for size in [*sizes, len(ids)]:
        piece = ids[position : position + size]
        position += size
        delta = stream.push(piece, final=position >= len(ids))
        joined, used, stop = joined + delta.text, used + delta.num_tokens_used, delta.stop
        if stop is not None or position >= len(ids):
            break
    assert (joined, stop, used) == (whole.text, whole.stop, whole.num_tokens_used)
