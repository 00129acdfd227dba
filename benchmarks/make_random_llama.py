"""Write a Llama of random weights as a GGUF file, in seconds: for speed on models that no cache holds.

    python -m benchmarks.make_random_llama OUT.gguf [--type q4_1|q4_0|q8_0] [--size 1b|tiny] [--like demo.gguf]

Quants are random bytes; scales keep the activations of every layer in a sane range, so that no arithmetic meets
infinities. The tokenizer is copied from the file that --like names. The default size is that of Llama 3.2 1B with
the vocabulary of that tokenizer.
"""

from __future__ import annotations

import argparse
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import gguf
import numpy as np
from numpy.typing import NDArray

GROUP = 32


@dataclass(frozen=True)
class Size:
    hidden: int
    layers: int
    heads: int
    kv_heads: int
    intermediate: int


SIZES = {"1b": Size(2048, 16, 32, 8, 8192), "tiny": Size(128, 2, 4, 2, 256)}
QUANTS = {
    "q4_0": gguf.GGMLQuantizationType.Q4_0,
    "q4_1": gguf.GGMLQuantizationType.Q4_1,
    "q8_0": gguf.GGMLQuantizationType.Q8_0,
}


def random_blocks(kind: str, rows: int, cols: int, rng: np.random.Generator) -> NDArray[np.uint8]:
    """A quantised matrix [rows, bytes] of weights with mean 0 and variance 1/cols."""
    quant_bytes = GROUP if kind == "q8_0" else GROUP // 2
    scale_bytes = 4 if kind == "q4_1" else 2
    blocks = np.empty((rows, cols // GROUP, scale_bytes + quant_bytes), np.uint8)
    blocks[..., scale_bytes:] = rng.integers(0, 256, (rows, cols // GROUP, quant_bytes), np.uint8)
    # A uniform value of n steps has a standard deviation of n / sqrt(12) steps.
    steps = 256 if kind == "q8_0" else 16
    scale = np.float16(12**0.5 / steps / cols**0.5)
    scales = (scale * rng.uniform(0.75, 1.25, blocks.shape[:2])).astype(np.float16)
    blocks[..., :2] = scales[..., None].view(np.uint8)
    if kind == "q4_1":
        blocks[..., 2:4] = (scales * np.float16(-7.5)).astype(np.float16)[..., None].view(np.uint8)
    return blocks.reshape(rows, -1)


def write(path: Path, kind: str, size: Size, like: Path, seed: int = 0) -> None:
    """The file; the head is tied to the embedding, in Q8_0, as in the demo model."""
    source = gguf.GGUFReader(like)
    rng = np.random.default_rng(seed)
    writer = gguf.GGUFWriter(path, "llama")
    vocab = copy_tokenizer(source, writer)
    head_dim = size.hidden // size.heads
    writer.add_name("random")
    writer.add_context_length(8192)
    writer.add_embedding_length(size.hidden)
    writer.add_block_count(size.layers)
    writer.add_feed_forward_length(size.intermediate)
    writer.add_head_count(size.heads)
    writer.add_head_count_kv(size.kv_heads)
    writer.add_rope_dimension_count(head_dim)
    writer.add_rope_freq_base(500_000.0)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_vocab_size(vocab)

    def matrix(name: str, rows: int, cols: int, quant: str = kind) -> None:
        writer.add_tensor(name, random_blocks(quant, rows, cols, rng), raw_dtype=QUANTS[quant])

    def norm(name: str) -> None:
        writer.add_tensor(name, np.ones(size.hidden, np.float32))

    matrix("token_embd.weight", vocab, size.hidden, "q8_0")
    for i in range(size.layers):
        norm(f"blk.{i}.attn_norm.weight")
        matrix(f"blk.{i}.attn_q.weight", size.hidden, size.hidden)
        matrix(f"blk.{i}.attn_k.weight", size.kv_heads * head_dim, size.hidden)
        matrix(f"blk.{i}.attn_v.weight", size.kv_heads * head_dim, size.hidden)
        matrix(f"blk.{i}.attn_output.weight", size.hidden, size.hidden)
        norm(f"blk.{i}.ffn_norm.weight")
        matrix(f"blk.{i}.ffn_gate.weight", size.intermediate, size.hidden)
        matrix(f"blk.{i}.ffn_up.weight", size.intermediate, size.hidden)
        matrix(f"blk.{i}.ffn_down.weight", size.hidden, size.intermediate)
    norm("output_norm.weight")
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def copy_tokenizer(source: gguf.GGUFReader, writer: gguf.GGUFWriter) -> int:
    """All fields of the tokenizer, as they are; returns the size of the vocabulary."""
    vocab = 0
    for name, field in source.fields.items():
        if not name.startswith("tokenizer."):
            continue
        value: Any = field.contents()
        if name == "tokenizer.ggml.tokens":
            vocab = len(value)
        writer.add_key_value(name, value, field.types[0], field.types[1] if len(field.types) > 1 else None)
    return vocab


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path)
    parser.add_argument("--type", choices=sorted(QUANTS), default="q4_1")
    parser.add_argument("--size", choices=sorted(SIZES), default="1b")
    parser.add_argument("--like", type=Path, help="GGUF file whose tokenizer is copied (default: the demo model)")
    options = parser.parse_args()
    from headrace.weights.hub import resolve_model

    write(options.out, options.type, SIZES[options.size], options.like or resolve_model("smollm2"))


if __name__ == "__main__":
    main()
