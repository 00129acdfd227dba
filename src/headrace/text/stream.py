"""TextStream: one completion's token ids → text deltas, ended by stop strings."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from headrace.core.params import SamplingParams
from headrace.text.detokenizer import IncrementalDetokenizer
from headrace.text.stop_matcher import StopMatcher
from headrace.text.tokenizer import Tokenizer


@dataclass(frozen=True, slots=True)
class TextDelta:
    """What one push adds to a completion."""

    text: str
    stop: str | None
    """The stop string that ended the output."""
    num_tokens_used: int
    """How many of the pushed ids belong to the completion; those after a stop string do not."""


class TextStream:
    """Detokenizer and stop matcher of one completion that goes on after its prompt.

    The token that ends the output (the model's end-of-sequence ids unless ignored, and `stop_token_ids`) is part
    of the completion but not of its text, unless `include_stop_str_in_output` asks for it.
    """

    def __init__(self, tokenizer: Tokenizer, params: SamplingParams) -> None:
        self._detokenizer = IncrementalDetokenizer(tokenizer, params.skip_special_tokens, continuation=True)
        self._matcher = StopMatcher(params.stop, params.include_stop_str_in_output) if params.stop else None
        silent: set[int] = set()
        if not params.include_stop_str_in_output:
            silent.update(params.stop_token_ids)
            if not params.ignore_eos:
                silent.update(tokenizer.eos_token_ids)
        self._silent_at_end = frozenset(silent)

    def push(self, ids: Sequence[int], final: bool = False) -> TextDelta:
        """Add generated ids; `final` says that none follow, and brings out whatever was held back."""
        texts: list[str] = []
        spoken = ids[:-1] if final and ids and ids[-1] in self._silent_at_end else ids
        if self._matcher is None:
            texts.append(self._detokenizer.push(spoken))
        else:
            for position, token_id in enumerate(spoken):
                result = self._matcher.push(self._detokenizer.push((token_id,)))
                texts.append(result.text)
                if result.matched is not None:
                    return TextDelta("".join(texts), result.matched, position + 1)
        stop = None
        if final:
            rest = self._detokenizer.finish()
            if self._matcher is None:
                texts.append(rest)
            else:
                last = self._matcher.push(rest)
                flushed = self._matcher.flush()
                texts += [last.text, "" if last.matched is not None else flushed.text]
                stop = last.matched or flushed.matched
        return TextDelta("".join(texts), stop, len(ids))
