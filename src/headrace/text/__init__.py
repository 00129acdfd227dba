"""Text on its way in and out: chat messages, chat templates, token ids, text deltas, stop strings.

Owns the tokenizer (built from a GGUF's metadata or a Hugging Face folder), the one sandboxed template
environment, the incremental detokenizer and the stop matcher. Never imports weights, the engine or a tensor
library; jinja2 and tokenizers are imported at first use.
"""

from headrace.text.chat_template import ChatTemplate
from headrace.text.detokenizer import IncrementalDetokenizer
from headrace.text.messages import normalise_messages
from headrace.text.stop_matcher import StopMatcher, StopResult
from headrace.text.stream import TextDelta, TextStream
from headrace.text.tokenizer import Tokenizer

__all__ = [
    "ChatTemplate",
    "IncrementalDetokenizer",
    "StopMatcher",
    "StopResult",
    "TextDelta",
    "TextStream",
    "Tokenizer",
    "normalise_messages",
]
