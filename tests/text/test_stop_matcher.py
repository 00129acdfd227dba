from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.text.stop_matcher import StopMatcher


def cut(text: str, stops: tuple[str, ...], include: bool) -> tuple[str, str | None]:
    """The oracle: the earliest match in the whole text, the shortest of those."""
    found = [(text.find(stop), len(stop), stop) for stop in stops if stop in text]
    if not found:
        return text, None
    start, length, stop = min(found)
    return text[: start + length * include], stop


def run(text: str, stops: tuple[str, ...], sizes: list[int], include: bool = False) -> tuple[list[str], str | None]:
    """Deltas and match for `text` pushed in pieces of `sizes`, the rest at once."""
    matcher = StopMatcher(stops, include)
    deltas, position = [], 0
    for size in [*sizes, len(text)]:
        result = matcher.push(text[position : position + size])
        deltas.append(result.text)
        position += size
        if result.matched is not None:
            return deltas, result.matched
    last = matcher.flush()
    return [*deltas, last.text], last.matched


@settings(max_examples=500)
@given(
    text=st.text(alphabet="abc", max_size=30),
    stops=st.lists(st.text(alphabet="abc", min_size=1, max_size=6), min_size=1, max_size=5),
    sizes=st.lists(st.integers(0, 4), max_size=30),
    include=st.booleans(),
)
def test_any_split_gives_what_the_whole_text_gives(
    text: str, stops: list[str], sizes: list[int], include: bool
) -> None:
    deltas, matched = run(text, tuple(stops), sizes, include)
    assert ("".join(deltas), matched) == cut(text, tuple(stops), include)


@given(
    text=st.text(alphabet="ab", max_size=20), stops=st.lists(st.text(alphabet="ab", min_size=1), min_size=1, max_size=3)
)
def test_no_more_is_held_back_than_could_be_a_stop(text: str, stops: list[str]) -> None:
    matcher = StopMatcher(tuple(stops))
    shown = ""
    for character in text:
        result = matcher.push(character)
        shown += result.text
        if result.matched is not None:
            return
    held = text[len(shown) :]
    assert held == "" or any(stop.startswith(held) or stop in held for stop in stops)


def test_a_stop_string_never_leaks_its_beginning() -> None:
    deltas, matched = run("ABCDEFGHIJK", ("DEFGHIJ",), [1] * 11)
    assert "".join(deltas) == "ABC" and matched == "DEFGHIJ"


def test_a_stop_inside_a_token_ends_before_it() -> None:
    result = StopMatcher(("DE",)).push("ABCDEF")
    assert (result.text, result.matched) == ("ABC", "DE")


def test_the_earliest_of_overlapping_stops_wins() -> None:
    for sizes in ([], [1] * 5, [2, 2]):
        deltas, matched = run("xabcd", ("bcd", "abc", "ab"), sizes)
        assert ("".join(deltas), matched) == ("x", "ab")


def test_a_later_match_waits_for_an_earlier_one_that_is_still_possible() -> None:
    assert run("abcd", ("abcd", "bc"), [1] * 4) == (["", "", "", ""], "abcd")
    assert "".join(run("abcx", ("abcd", "bc"), [1] * 4)[0]) == "a"
    deltas, matched = run("abc", ("abcd", "bc"), [1] * 3)
    assert ("".join(deltas), matched) == ("a", "bc")


def test_a_half_match_at_the_end_is_flushed() -> None:
    deltas, matched = run("text a", ("ab", "abc", "bcd"), [1] * 6)
    assert "".join(deltas) == "text a" and deltas[-1] == "a" and matched is None


def test_the_matched_string_can_be_included() -> None:
    assert StopMatcher(("\n\n",), include=True).push("a\n\nb").text == "a\n\n"


def test_nothing_follows_a_match() -> None:
    matcher = StopMatcher((".",))
    matcher.push("a.b")
    assert matcher.push("c") == matcher.flush()
    assert matcher.flush().text == "" and matcher.flush().matched == "."


def test_the_longest_allowed_stops_stay_cheap() -> None:
    stops = tuple("a" * 1023 + chr(98 + i) for i in range(4))
    matcher = StopMatcher(stops)
    shown = sum(len(matcher.push("aaaa").text) for _ in range(2000))
    assert shown == 8000 - 1023


def test_an_empty_stop_is_refused() -> None:
    with pytest.raises(ValueError, match="empty"):
        StopMatcher(("a", ""))
