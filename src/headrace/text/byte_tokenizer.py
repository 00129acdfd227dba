"""ByteTokenizer: one token per byte, for tests and tiny models; also writes itself as a Hugging Face folder."""

from __future__ import annotations

import json
import re
from pathlib import Path

from headrace.text.tokenizer import Tokenizer
from headrace.text.vocabulary import Vocabulary, byte_level_alphabet

SPECIAL_TOKENS = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
CHAT_TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n{{ message['content'] }}<|im_end|>\n"
    "{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


class ByteTokenizer(Tokenizer):
    """Ids 0 to 255 are bytes; 256 `<|endoftext|>` (begins a sequence), 257 `<|im_start|>`, 258 `<|im_end|>` (ends).

    Needs no library and no file. `adds_bos` puts `<|endoftext|>` before every prompt.
    """

    def __init__(self, *, adds_bos: bool = False) -> None:
        self.adds_bos = adds_bos
        texts = [*byte_level_alphabet(), *SPECIAL_TOKENS]
        added = dict(enumerate(SPECIAL_TOKENS, start=256))
        ids = {text: i for i, text in added.items()}
        splitter = re.compile("(" + "|".join(map(re.escape, SPECIAL_TOKENS)) + ")")

        def encode(text: str, add_special_tokens: bool) -> list[int]:
            found = [256] if adds_bos and add_special_tokens else []
            for piece in splitter.split(text):
                found += [ids[piece]] if piece in ids else piece.encode("utf-8")
            return found

        super().__init__(
            encode,
            Vocabulary(len(texts), texts.__getitem__, added, frozenset(added), "byte_level"),
            bos_token_id=256,
            eos_token_ids=(258,),
            special_tokens={"bos_token": SPECIAL_TOKENS[0], "eos_token": SPECIAL_TOKENS[2]},
        )

    def tokenizer_json(self) -> str:
        """The same tokenizer in the format of the `tokenizers` library."""
        added = [
            {
                "id": i,
                "content": text,
                "single_word": False,
                "lstrip": False,
                "rstrip": False,
                "normalized": False,
                "special": True,
            }
            for i, text in enumerate(SPECIAL_TOKENS, start=256)
        ]
        byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False}
        sequence = {"Sequence": {"id": "A", "type_id": 0}}
        bos = {"SpecialToken": {"id": SPECIAL_TOKENS[0], "type_id": 0}}
        template = {
            "type": "TemplateProcessing",
            "single": [bos, sequence],
            "pair": [bos, sequence, {"Sequence": {"id": "B", "type_id": 1}}],
            "special_tokens": {
                SPECIAL_TOKENS[0]: {"id": SPECIAL_TOKENS[0], "ids": [256], "tokens": [SPECIAL_TOKENS[0]]}
            },
        }
        return json.dumps(
            {
                "version": "1.0",
                "truncation": None,
                "padding": None,
                "added_tokens": added,
                "normalizer": None,
                "pre_tokenizer": byte_level,
                "post_processor": template if self.adds_bos else byte_level,
                "decoder": byte_level,
                "model": {
                    "type": "BPE",
                    "vocab": {text: i for i, text in enumerate(byte_level_alphabet())},
                    "merges": [],
                },
            },
            ensure_ascii=False,
        )

    def write_folder(self, folder: Path, *, chat_template: str | None = CHAT_TEMPLATE) -> None:
        """Write tokenizer.json and tokenizer_config.json into an existing folder."""
        config = {
            "tokenizer_class": "PreTrainedTokenizerFast",
            "clean_up_tokenization_spaces": False,
            **self.special_tokens,
            **({"chat_template": chat_template} if chat_template is not None else {}),
        }
        (folder / "tokenizer.json").write_text(self.tokenizer_json(), encoding="utf-8")
        (folder / "tokenizer_config.json").write_text(json.dumps(config, indent=1), encoding="utf-8")
