"""What the server process reads of a model: the tokenizer's source and the chat template, and nothing heavy for it."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

from headrace.weights.checkpoint import open_checkpoint
from headrace.weights.text_source import open_text_source


def test_a_gguf_file_gives_its_metadata_and_template(tiny_gguf: Callable[..., Path]) -> None:
    path = tiny_gguf("llama", "Q8_0")
    source, checkpoint = open_text_source(path), open_checkpoint(path)
    assert source.chat_template == checkpoint.chat_template
    assert list(source.tokenizer_source["tokenizer.ggml.tokens"]) == list(  # type: ignore[index]
        checkpoint.tokenizer_source["tokenizer.ggml.tokens"]  # type: ignore[index]
    )


def test_a_folder_is_its_own_tokenizer_source(tmp_path: Path) -> None:
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"chat_template": "{{ messages }}"}))
    source = open_text_source(tmp_path)
    assert (source.tokenizer_source, source.chat_template) == (tmp_path, "{{ messages }}")
    (tmp_path / "chat_template.jinja").write_text("file")
    assert open_text_source(tmp_path).chat_template == "file"


def test_no_numpy_is_imported_for_it(tiny_gguf: Callable[..., Path]) -> None:
    code = (
        "import sys; from pathlib import Path; from headrace.weights.text_source import open_text_source; "
        f"open_text_source(Path({str(tiny_gguf('llama', 'Q8_0'))!r})); sys.exit('numpy' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
