"""StopMatcher: find stop strings in a text that arrives in pieces, and let nothing of them through.

One Knuth-Morris-Pratt automaton per stop string, so a character costs the same however long the strings are.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class StopResult:
    """Text that may be shown now, and the stop string that ended it."""

    text: str
    matched: str | None = None


class StopMatcher:
    """Matches `stops` in a stream.

    The match that begins earliest in the text wins, the shortest where two begin together; how the text was
    split into pushes never matters. Text that may still turn out to be part of a stop string is held back until
    it cannot be. After a match the rest of the text is dropped.
    """

    def __init__(self, stops: tuple[str, ...], include: bool = False) -> None:
        """include: keep the matched string at the end of the text."""
        if not all(stops):
            raise ValueError("an empty stop string matches everywhere")
        self._stops = stops
        self._include = include
        self._fallbacks = [_fallbacks(stop) for stop in stops]
        self._first_characters = frozenset(stop[0] for stop in stops)
        self._states = [0] * len(stops)
        self._held = ""
        self._end = 0
        self._best: tuple[int, str] | None = None
        self._matched: str | None = None

    def push(self, text: str) -> StopResult:
        """Add `text`; returns what can be shown of everything pushed so far and not shown yet."""
        if self._matched is not None:
            return StopResult("", self._matched)
        if not self._held and self._first_characters.isdisjoint(text):
            self._end += len(text)
            return StopResult(text)
        held_start = self._end - len(self._held)
        self._held += text
        for character in text:
            self._advance(character)
            if self._best is not None and self._best[0] <= self._oldest_candidate():
                return self._finish(held_start)
        shown = min(self._oldest_candidate(), self._best[0] if self._best else self._end) - held_start
        result = StopResult(self._held[:shown])
        self._held = self._held[shown:]
        return result

    def flush(self) -> StopResult:
        """No more text comes: what was held back, cut at a match that was waiting for an earlier one to fail."""
        if self._matched is not None:
            return StopResult("", self._matched)
        if self._best is not None:
            return self._finish(self._end - len(self._held))
        held, self._held = self._held, ""
        self._states = [0] * len(self._stops)
        return StopResult(held)

    def _advance(self, character: str) -> None:
        """One character further: the longest prefix of each stop that the text now ends with."""
        self._end += 1
        for i, stop in enumerate(self._stops):
            state = self._states[i]
            fallbacks = self._fallbacks[i]
            while state and stop[state] != character:
                state = fallbacks[state - 1]
            if stop[state] == character:
                state += 1
            if state == len(stop):
                start = self._end - state
                if self._best is None or start < self._best[0]:
                    self._best = (start, stop)
                state = fallbacks[state - 1]
            self._states[i] = state

    def _oldest_candidate(self) -> int:
        """Where the longest unfinished match begins."""
        return self._end - max(self._states, default=0)

    def _finish(self, held_start: int) -> StopResult:
        start, stop = self._best if self._best is not None else (self._end, "")
        self._matched = stop
        cut = start + (len(stop) if self._include else 0) - held_start
        text, self._held = self._held[:cut], ""
        return StopResult(text, stop)


def _fallbacks(pattern: str) -> list[int]:
    """For each prefix of `pattern`, the length of its longest proper border."""
    lengths = [0] * len(pattern)
    border = 0
    for i in range(1, len(pattern)):
        while border and pattern[i] != pattern[border]:
            border = lengths[border - 1]
        if pattern[i] == pattern[border]:
            border += 1
        lengths[i] = border
    return lengths
