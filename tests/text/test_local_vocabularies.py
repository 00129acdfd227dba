"""Real vocabularies and templates, where somebody unpacked them: see `llama_cpp_models` in conftest."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from headrace.core.errors import InvalidRequestError
from headrace.text.chat_template import ChatTemplate
from headrace.text.detokenizer import IncrementalDetokenizer
from headrace.text.messages import normalise_messages
from headrace.text.tokenizer import Tokenizer

GOLDEN = [
    "command-r", "deepseek-coder", "deepseek-llm", "gpt-2", "llama-bpe", "llama-spm", "mpt", "phi-3", "qwen2",
    "qwen35", "refact", "starcoder",
]  # fmt: skip


@pytest.mark.parametrize("name", GOLDEN)
def test_ids_equal_the_golden_cases(llama_cpp_models: Path, name: str) -> None:
    from headrace.weights.gguf import GGUFFile

    file = llama_cpp_models / f"ggml-vocab-{name}.gguf"
    tokenizer = Tokenizer.from_gguf(GGUFFile(file).metadata)
    with open(f"{file}.inp", encoding="utf-8", newline="") as texts:
        cases = texts.read().split("\n__ggml_vocab_test__\n")
    expected = Path(f"{file}.out").read_text(encoding="utf-8").split("\n")
    for text, line in zip(cases, expected, strict=False):
        ids = tokenizer.encode(text, add_special_tokens=False)
        assert ids == [int(i) for i in line.split()], repr(text)
        assert tokenizer.decode(ids, skip_special_tokens=False) == text
        detokenizer = IncrementalDetokenizer(tokenizer, skip_special_tokens=False)
        assert "".join(detokenizer.push([i]) for i in ids) + detokenizer.finish() == text


def _reference(source: str) -> Any:
    from transformers.utils.chat_template_utils import _compile_jinja_template

    return _compile_jinja_template(source)


def _variants(messages: list[dict[str, Any]]) -> list[list[dict[str, Any]]]:
    """The shapes a template may want: content null or empty, arguments as object or text."""
    variants = []
    for empty in ("", None):
        for as_text in (False, True):
            variant = []
            for message in messages:
                changed = {**message, "content": empty if message["content"] is None else message["content"]}
                if as_text and "tool_calls" in message:
                    changed["tool_calls"] = [
                        {**c, "function": {**c["function"], "arguments": json.dumps(c["function"]["arguments"])}}
                        for c in message["tool_calls"]
                    ]
                variant.append(changed)
            variants.append(variant)
    return variants


def test_real_templates_render_as_hugging_face_renders_them(llama_cpp_models: Path) -> None:
    tools = [{"type": "function", "function": {"name": "look", "description": "d", "parameters": {"type": "object"}}}]
    call = {"id": "call12345", "type": "function", "function": {"name": "look", "arguments": '{"city": "Paris"}'}}
    conversations: list[tuple[list[dict[str, Any]], Any]] = [
        ([{"role": "user", "content": "Hi é <b>"}], None),
        ([{"role": "system", "content": "s"}, {"role": "user", "content": "a"}], None),
        (
            [
                {"role": "user", "content": "a"},
                {"role": "assistant", "content": None, "tool_calls": [call]},
                {"role": "tool", "tool_call_id": "call12345", "content": "sunny"},
            ],
            tools,
        ),
    ]
    special = {"bos_token": "<s>", "eos_token": "</s>"}
    num_equal = 0
    for file in sorted((llama_cpp_models / "templates").glob("*.jinja")):
        source = file.read_text(encoding="utf-8")
        ours, reference = ChatTemplate(source, special), _reference(source)
        for messages, offered in conversations:
            theirs = set()
            for variant in _variants(normalise_messages(messages)):
                try:
                    theirs.add(reference.render(messages=variant, tools=offered, add_generation_prompt=True, **special))
                except Exception:
                    theirs.add("refused")
            try:
                rendered = ours.render(messages, tools=offered)
            except InvalidRequestError:
                rendered = "refused"
            assert rendered in theirs, f"{file.name}: {rendered}"
            num_equal += rendered != "refused"
    assert num_equal > 180
