"""Perplexity of headrace beside llama.cpp's, on the same file, text and windows.

    python -m benchmarks.perplexity TEXT [--model smollm2] [--llamacpp BUILD_DIR]

As llama-perplexity does it: windows of 512 tokens that do not overlap, the second half of each is scored.
"""

from __future__ import annotations

import argparse
import re
import subprocess
from pathlib import Path

import numpy as np

from headrace.runner.debug import DebugRunner, run_chunks
from headrace.text.tokenizer import Tokenizer
from headrace.weights.checkpoint import open_checkpoint
from headrace.weights.hub import resolve_model

WINDOW_TOKENS = 512


def headrace_perplexity(model: Path, text: str, num_threads: int) -> tuple[float, int]:
    """(perplexity, tokens scored). Raises ValueError for a text shorter than one window."""
    source = open_checkpoint(model).tokenizer_source
    tokenizer = Tokenizer.from_folder(source) if isinstance(source, Path) else Tokenizer.from_gguf(source)
    ids = tokenizer.encode(text)
    losses = []
    with DebugRunner(model, num_threads=num_threads, max_model_len=WINDOW_TOKENS) as runner:
        for start in range(0, len(ids) // WINDOW_TOKENS * WINDOW_TOKENS, WINDOW_TOKENS):
            window = ids[start : start + WINDOW_TOKENS]
            runner.forget(0)
            logits = run_chunks(runner, 0, window)[WINDOW_TOKENS // 2 : -1].astype(np.float64)
            targets = window[WINDOW_TOKENS // 2 + 1 :]
            highest = logits.max(axis=-1)
            log_sums = highest + np.log(np.exp(logits - highest[:, None]).sum(axis=-1))
            losses += list(log_sums - logits[np.arange(len(targets)), targets])
    if not losses:
        raise ValueError(f"the text has {len(ids)} tokens, fewer than a window of {WINDOW_TOKENS}")
    return float(np.exp(np.mean(losses))), len(losses)


def llamacpp_perplexity(build: Path, model: Path, text: Path, num_threads: int) -> float:
    """What llama-perplexity prints as its final estimate."""
    command = [build / "bin" / "llama-perplexity", "-m", model, "-f", text, "-c", WINDOW_TOKENS, "-t", num_threads]
    done = subprocess.run([str(word) for word in command], capture_output=True, text=True, check=True)
    found = re.search(r"PPL = ([0-9.]+)", done.stdout + done.stderr)
    if found is None:
        raise ValueError("llama-perplexity printed no estimate")
    return float(found[1])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("text", type=Path, help="UTF-8 text of at least a few thousand tokens")
    parser.add_argument("--model", default="smollm2")
    parser.add_argument("--llamacpp", type=Path, help="build folder with bin/llama-perplexity")
    parser.add_argument("--num-threads", type=int, default=2)
    options = parser.parse_args()
    model = resolve_model(options.model)
    ours, count = headrace_perplexity(model, options.text.read_text(encoding="utf-8"), options.num_threads)
    print(f"headrace   {ours:.4f}  ({count} tokens scored)")
    if options.llamacpp is not None:
        theirs = llamacpp_perplexity(options.llamacpp, model, options.text, options.num_threads)
        print(f"llama.cpp  {theirs:.4f}  (headrace {(ours / theirs - 1) * 100:+.2f} %)")


if __name__ == "__main__":
    main()
