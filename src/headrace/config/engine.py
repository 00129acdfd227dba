"""EngineConfig: everything that decides how a model is loaded and run."""

from __future__ import annotations

from dataclasses import dataclass

from headrace.config.options import Options, option
from headrace.core.errors import ConfigError

_NO_HALF = "half-precision arithmetic has no kernels yet; weights keep the format of their file in any case"


@dataclass(frozen=True, kw_only=True)
class EngineConfig(Options):
    """Options of the engine. vLLM's names where it has them; None means "chosen at start-up and reported".

    Immutable and checked on construction: raises ConfigError naming the option. Encodable by msgspec, so that
    the engine process gets exactly this object, sources included.
    """

    model: str = option(
        "smollm2",
        unit="name or path",
        group="model",
        help="model to run: a name ('smollm2' is the demo model), a .gguf file, or a folder in Hugging Face layout",
    )
    served_model_name: tuple[str, ...] = option(
        (),
        unit="names",
        group="model",
        help="names the API answers to, comma-separated; the first one is reported (default: the model's)",
    )
    tokenizer: str | None = option(
        None, unit="path", group="model", help="folder with another tokenizer.json (default: the model's own)"
    )
    revision: str | None = option(
        None, unit="name", group="model", help="branch, tag or commit of a model in the Hugging Face cache"
    )
    chat_template: str | None = option(
        None,
        unit="path or text",
        group="model",
        help="Jinja chat template: a file or text (default: the model's)",
    )
    dtype: str = option(
        "auto",
        unit="choice",
        group="model",
        choices=("auto", "float32"),
        refused={name: _NO_HALF for name in ("half", "float16", "bfloat16")} | {"float": "write float32"},
        help="type of activations; auto is float32 on a CPU",
    )
    quantization: str = option(
        "none",
        unit="choice",
        group="model",
        choices=("none", "q8", "q4", "bf16"),
        refused={"gguf": "write none: a GGUF file's own formats are kept"},
        help="format that weights of more bits are packed into at load; none keeps every weight as it is in the file",
    )
    max_model_len: int | None = option(
        None,
        unit="tokens",
        group="limits",
        minimum=1,
        maximum=1 << 24,
        help="longest prompt plus output (default: what the model was trained for); 4k = 4000, 4K = 4096",
    )
    max_num_seqs: int = option(
        64, unit="requests", group="limits", minimum=1, maximum=4096, help="requests that run at the same time"
    )
    max_num_batched_tokens: int = option(
        512, unit="tokens", group="limits", minimum=1, maximum=1 << 16, help="tokens computed in one step"
    )
    max_logits_rows: int = option(
        64,
        unit="rows",
        group="limits",
        minimum=1,
        maximum=1 << 16,
        help="positions per step whose logits are computed (raised to max_num_seqs when smaller)",
    )
    max_top_logprobs: int = option(
        20,
        unit="tokens",
        flag="--max-logprobs",
        group="limits",
        minimum=0,
        maximum=20,
        help="most alternatives that logprobs may ask for",
    )
    scheduling_policy: str = option(
        "fcfs",
        unit="choice",
        group="limits",
        choices=("fcfs", "priority"),
        help="first come first served, or lowest priority number first",
    )
    overlap: bool = option(
        False,
        unit="switch",
        group="limits",
        help="schedule the next step and hand out the last one's tokens while a step computes; pays where the host has "
        "a core that does not compute",
    )
    enable_prefix_caching: bool = option(
        True, unit="switch", group="memory", help="reuse the KV cache of prompts that begin the same way"
    )
    block_size: int = option(
        16, unit="tokens", group="memory", minimum=16, maximum=256, help="tokens per KV block; a multiple of 16"
    )
    kv_cache_dtype: str = option(
        "auto",
        unit="choice",
        group="memory",
        choices=("auto", "bfloat16", "float32"),
        refused={name: "KV is bfloat16 or float32 so far" for name in ("float16", "fp8", "fp8_e5m2")},
        help="type of keys and values in the cache; auto is bfloat16, half the memory of float32",
    )
    kv_cache_memory_bytes: int | None = option(
        None,
        unit="bytes",
        group="memory",
        minimum=1 << 16,
        maximum=1 << 48,
        help="size of the KV cache (default: the rest of the memory budget, at most what max_num_seqs can use)",
    )
    memory_budget_bytes: int | None = option(
        None,
        unit="bytes",
        env="HEADRACE_MEMORY_BUDGET_BYTES",
        group="memory",
        minimum=1 << 20,
        maximum=1 << 48,
        help="all the engine may use: weights, working memory, KV cache (default: half of what is free)",
    )
    prefault: bool = option(
        False, unit="switch", group="memory", help="touch all reserved memory at start instead of at first use"
    )
    num_threads: int | None = option(
        None,
        unit="threads",
        env="HEADRACE_NUM_THREADS",
        group="machine",
        minimum=1,
        maximum=1024,
        help="compute threads (default: the processors this process may use, by affinity and cgroup quota)",
    )
    isa: str | None = option(
        None,
        unit="name",
        env="HEADRACE_ISA",
        group="machine",
        help="instruction set of the kernels (default: the best this CPU has; `headrace doctor` lists them)",
    )
    seed: int = option(
        0,
        unit="number",
        group="general",
        minimum=0,
        maximum=(1 << 63) - 1,
        help="seeds the draw of per-request seeds for requests that bring none",
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.block_size % 16:
            raise ConfigError(f"block_size must be a multiple of 16, got {self.block_size}", param="block_size")

    @property
    def kv_dtype(self) -> str:
        """How the cache stores keys and values: bf16 or f32."""
        return "f32" if self.kv_cache_dtype == "float32" else "bf16"

    @property
    def num_logits_rows(self) -> int:
        """Logits rows of one step: room for every running request to sample."""
        return max(self.max_logits_rows, self.max_num_seqs)
