from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.core.errors import InvalidRequestError, ModelFileError, UnsupportedModelError
from headrace.text.byte_tokenizer import ByteTokenizer
from headrace.text.tokenizer import Tokenizer


def folder_with(tmp_path: Path, **changes: Any) -> Path:
    """A ByteTokenizer's folder whose tokenizer.json has some keys replaced."""
    ByteTokenizer().write_folder(tmp_path)
    content = json.loads((tmp_path / "tokenizer.json").read_text())
    (tmp_path / "tokenizer.json").write_text(json.dumps(content | changes))
    return tmp_path


@pytest.mark.parametrize("adds_bos", [False, True])
def test_the_byte_tokenizer_and_its_folder_agree(tmp_path: Path, adds_bos: bool) -> None:
    mine = ByteTokenizer(adds_bos=adds_bos)
    mine.write_folder(tmp_path)
    theirs = Tokenizer.from_folder(tmp_path)
    for text in ["", "hé😊\n", "<|im_start|>x<|im_end|>", " <|im_ end|>"]:
        for special in (True, False):
            assert mine.encode(text, special) == theirs.encode(text, special)
        ids = mine.encode(text)
        assert mine.decode(ids) == theirs.decode(ids)
        assert mine.decode(ids, False) == theirs.decode(ids, False)
    assert (mine.vocab_size, mine.bos_token_id, mine.eos_token_ids) == (259, 256, (258,))
    assert (theirs.vocab_size, theirs.bos_token_id, theirs.eos_token_ids) == (259, 256, (258,))
    assert mine.special_tokens == theirs.special_tokens
    assert [mine.token_bytes(i) for i in range(259)] == [theirs.token_bytes(i) for i in range(259)]


def test_the_folder_loads_in_transformers_with_the_same_ids(tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    ByteTokenizer(adds_bos=True).write_folder(tmp_path)
    theirs = transformers.AutoTokenizer.from_pretrained(tmp_path)
    text = "<|im_start|>hé😊<|im_end|>"
    assert theirs(text)["input_ids"] == ByteTokenizer(adds_bos=True).encode(text)


@given(st.lists(st.integers(0, 258), max_size=24))
def test_decoding_equals_the_tokenizers_library(ids: list[int]) -> None:
    assert ByteTokenizer().decode(ids, skip_special_tokens=False) == _LIBRARY.decode(ids, skip_special_tokens=False)
    assert ByteTokenizer().decode(ids) == _LIBRARY.decode(ids, skip_special_tokens=True)


def _library() -> Any:
    import tokenizers

    return tokenizers.Tokenizer.from_str(ByteTokenizer().tokenizer_json())


_LIBRARY = _library()


def test_generation_config_adds_end_tokens(tmp_path: Path) -> None:
    ByteTokenizer().write_folder(tmp_path)
    for value, expected in [(256, (258, 256)), ([258, 256], (258, 256)), (None, (258,))]:
        (tmp_path / "generation_config.json").write_text(json.dumps({"eos_token_id": value}))
        assert Tokenizer.from_folder(tmp_path).eos_token_ids == expected
    (tmp_path / "generation_config.json").write_text('{"eos_token_id": "x"}')
    with pytest.raises(ModelFileError, match="eos_token_id"):
        Tokenizer.from_folder(tmp_path)


def test_truncation_and_padding_of_the_file_are_ignored(tmp_path: Path) -> None:
    truncation = {"direction": "Right", "max_length": 2, "strategy": "LongestFirst", "stride": 0}
    padding = {
        "strategy": {"Fixed": 8},
        "direction": "Right",
        "pad_to_multiple_of": None,
        "pad_id": 0,
        "pad_type_id": 0,
        "pad_token": "!",
    }
    tokenizer = Tokenizer.from_folder(folder_with(tmp_path, truncation=truncation, padding=padding))
    assert tokenizer.encode("abcd") == [97, 98, 99, 100]


def test_special_tokens_may_be_objects(tmp_path: Path) -> None:
    ByteTokenizer().write_folder(tmp_path)
    config = {"eos_token": {"content": "<|endoftext|>", "lstrip": False}, "bos_token": None}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(config))
    tokenizer = Tokenizer.from_folder(tmp_path)
    assert tokenizer.eos_token_ids == (256,) and tokenizer.bos_token_id is None
    assert tokenizer.special_tokens == {"eos_token": "<|endoftext|>"}


def test_a_byte_fallback_decoder_is_understood(tmp_path: Path) -> None:
    decoder = {
        "type": "Sequence",
        "decoders": [
            {"type": "Replace", "pattern": {"String": "\u2581"}, "content": " "},
            {"type": "ByteFallback"},
            {"type": "Fuse"},
            {"type": "Strip", "content": " ", "start": 1, "stop": 0},
        ],
    }
    vocab = {"<unk>": 0, "<0xE6>": 1, "<0x97>": 2, "<0xA5>": 3, "\u2581a": 4}
    model = {"type": "BPE", "vocab": vocab, "merges": [], "byte_fallback": True, "unk_token": "<unk>"}
    folder = folder_with(tmp_path, decoder=decoder, model=model, added_tokens=[], pre_tokenizer=None)
    tokenizer = Tokenizer.from_folder(folder)
    assert tokenizer.decode([4, 1, 2, 3, 4]) == "a日 a"
    assert tokenizer.decode([4], continuation=True) == " a"
    assert tokenizer.token_bytes(1) == b"\xe6"


@pytest.mark.parametrize("decoder", [None, {"type": "WordPiece", "prefix": "##", "cleanup": True}])
def test_an_unknown_decoder_is_refused(tmp_path: Path, decoder: dict[str, Any] | None) -> None:
    with pytest.raises(UnsupportedModelError, match="unknown decoder"):
        Tokenizer.from_folder(folder_with(tmp_path, decoder=decoder))


def test_a_missing_or_broken_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(UnsupportedModelError, match=r"no tokenizer\.json"):
        Tokenizer.from_folder(tmp_path)
    (tmp_path / "tokenizer.json").write_text("{")
    with pytest.raises(ModelFileError, match=r"tokenizer\.json"):
        Tokenizer.from_folder(tmp_path)
    (tmp_path / "tokenizer.json").write_bytes(b"\xff\xfe")
    with pytest.raises(ModelFileError, match=r"tokenizer\.json"):
        Tokenizer.from_folder(tmp_path)
    ByteTokenizer().write_folder(tmp_path)
    (tmp_path / "tokenizer_config.json").write_text("[]")
    with pytest.raises(ModelFileError, match=r"tokenizer_config\.json"):
        Tokenizer.from_folder(tmp_path)


def test_ids_beyond_the_vocabulary_decode_to_nothing() -> None:
    tokenizer = ByteTokenizer()
    assert tokenizer.decode([104, 5000, -1, 105]) == "hi"
    assert tokenizer.token_bytes(1 << 40) == b""


def test_parts_of_characters_have_bytes_but_no_text() -> None:
    tokenizer = ByteTokenizer()
    assert tokenizer.token_bytes(0xC3) == b"\xc3"
    assert tokenizer.token_text(0xC3) == "\ufffd"


def test_a_lone_surrogate_is_refused_by_the_byte_tokenizer_too() -> None:
    with pytest.raises(InvalidRequestError, match="surrogate"):
        ByteTokenizer().encode("\udc00")
