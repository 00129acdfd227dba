"""How byte-level BPE families split a text before merging, by the name GGUF files give it (`tokenizer.ggml.pre`).

A wrong split still gives readable ids and a quietly worse model, so an unknown name is an error. The patterns
are those of the families' published tokenizer.json files.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from headrace.core.errors import UnsupportedModelError

if TYPE_CHECKING:
    from tokenizers.pre_tokenizers import PreTokenizer

_CONTRACTIONS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_TAIL = r"\s*[\r\n]+|\s+(?!\S)|\s+"
_LLAMA3 = rf"{_CONTRACTIONS}|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|\p{{N}}{{1,3}}| ?[^\s\p{{L}}\p{{N}}]+[\r\n]*|{_TAIL}"
_QWEN2 = rf"{_CONTRACTIONS}|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|\p{{N}}| ?[^\s\p{{L}}\p{{N}}]+[\r\n]*|{_TAIL}"
_QWEN35 = (
    rf"{_CONTRACTIONS}|[^\r\n\p{{L}}\p{{N}}]?[\p{{L}}\p{{M}}]+|\p{{N}}|"
    rf" ?[^\s\p{{L}}\p{{M}}\p{{N}}]+[\r\n]*|{_TAIL}"
)
_UPPER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]"
_LOWER = r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
_TEKKEN = (
    rf"[^\r\n\p{{L}}\p{{N}}]?{_UPPER}*{_LOWER}+|[^\r\n\p{{L}}\p{{N}}]?{_UPPER}+{_LOWER}*|"
    rf"\p{{N}}| ?[^\s\p{{L}}\p{{N}}]+[\r\n/]*|{_TAIL}"
)
_GPT4O = (
    rf"[^\r\n\p{{L}}\p{{N}}]?{_UPPER}*{_LOWER}+{_CONTRACTIONS}?|[^\r\n\p{{L}}\p{{N}}]?{_UPPER}+{_LOWER}*"
    rf"{_CONTRACTIONS}?|\p{{N}}{{1,3}}| ?[^\s\p{{L}}\p{{N}}]+[\r\n/]*|{_TAIL}"
)
_DEEPSEEK_LLM = (
    r"[\r\n]",
    r"\s?[\p{Lu}\p{Ll}\p{Lt}]+",
    r"\s?[!-/:-~！-／：-～‘-‟　-。]+",
    r"\s+$",
    r"[一-龥ࠀ-一가-퟿]+",
    r"\p{N}+",
)
_DEEPSEEK_CODER = (r"[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", r"[一-龥ࠀ-一가-퟿]+", r"\p{N}")
_DEEPSEEK_V3 = (
    r"\p{N}{1,3}",
    r"[一-龥぀-ゟ゠-ヿ]+",
    r"[!\"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+|"
    r" ?[\p{P}\p{S}]+[\r\n]*|" + _TAIL,
)


@dataclass(frozen=True, slots=True)
class Split:
    """One family's split.

    patterns: applied one after the other, each match becoming a piece of its own.
    gpt2: split the pieces by GPT-2's pattern afterwards.
    whole_words: a piece that is a token needs no merges.
    adds_bos: prompts begin with the beginning-of-sequence token unless the file says otherwise.
    composes: the text is brought to Unicode's composed form (NFC) first.
    """

    patterns: tuple[str, ...] = ()
    gpt2: bool = False
    whole_words: bool = False
    adds_bos: bool = False
    composes: bool = False

    def build(self) -> PreTokenizer:
        from tokenizers import Regex
        from tokenizers.pre_tokenizers import ByteLevel, Sequence
        from tokenizers.pre_tokenizers import Split as SplitStep

        steps: list[PreTokenizer] = [SplitStep(Regex(pattern), "isolated") for pattern in self.patterns]
        return Sequence([*steps, ByteLevel(add_prefix_space=False, use_regex=self.gpt2)])


_FAMILIES: tuple[tuple[tuple[str, ...], Split], ...] = (
    (("gpt-2", "phi-2", "gigachat", "mellum"), Split(gpt2=True)),
    (("mpt", "olmo"), Split(gpt2=True, composes=True)),
    (("smollm", "starcoder", "refact", "codeshell", "minerva-7b"), Split((r"\p{N}",), gpt2=True)),
    (("command-r",), Split((r"\p{N}",), gpt2=True, composes=True)),
    (
        ("llama-bpe", "llama3", "llama-v3", "falcon3", "falcon-h1", "pixtral", "midm-2.0", "lfm2"),
        Split((_LLAMA3,), whole_words=True, adds_bos=True),
    ),
    (("dbrx", "smaug-bpe"), Split((_LLAMA3,))),
    (("qwen2", "deepseek-r1-qwen", "megrez"), Split((_QWEN2,), composes=True)),
    (("qwen35",), Split((_QWEN35,))),
    (("tekken",), Split((_TEKKEN,), whole_words=True, adds_bos=True)),
    (("gpt-4o", "llama4"), Split((_GPT4O,))),
    (("deepseek-llm",), Split(_DEEPSEEK_LLM)),
    (("deepseek-coder",), Split(_DEEPSEEK_CODER)),
    (("deepseek-v3",), Split(_DEEPSEEK_V3)),
)
_BY_NAME = {name: split for names, split in _FAMILIES for name in names}


def find_split(name: object) -> Split:
    """The split of that name. Raises UnsupportedModelError listing the known ones."""
    found = _BY_NAME.get(name) if isinstance(name, str) else None
    if found is None:
        said = "the file does not say how to split text" if name is None else f"unknown pre-tokenizer {name!r}"
        raise UnsupportedModelError(
            f"tokenizer.ggml.pre: {said}; known: {', '.join(sorted(_BY_NAME))}", param="tokenizer.ggml.pre"
        )
    return found
