"""vLLM's option names that headrace does not have: some are accepted without effect, the others refused with a reason.

Accepted are only those whose absence nobody would notice in an answer: they tune what headrace does not have (device
graphs, GPU memory fractions) or ask for what it always does. docs/compatibility.md is generated from here.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import Any, Literal

from headrace.core.errors import ConfigError


@dataclass(frozen=True, slots=True)
class VllmFlag:
    """One name, without dashes. `only` are the values accepted without effect (None: any)."""

    name: str
    status: Literal["accepted", "refused"]
    reason: str
    takes_value: bool = True
    only: tuple[str, ...] | None = None


_NO_GRAPHS = "plans are replayed as they are; there are no device graphs"
_NO_GPU = "this concerns GPUs"
_ONE_PROCESS = "one engine process on one machine"

_ACCEPTED_SWITCHES = {
    "async-scheduling": "the loop is chosen by --overlap",
    "disable-cascade-attn": _NO_GPU,
    "disable-custom-all-reduce": _NO_GPU,
    "disable-hybrid-kv-cache-manager": "every layer group has its own cache in any case",
    "disable-log-stats": "statistics are at /metrics and are not logged",
    "disable-nccl-for-dp-synchronization": _NO_GPU,
    "disable-uvicorn-access-log": "headrace decides what it logs by --log-level",
    "enable-cumem-allocator": _NO_GPU,
    "enable-flashinfer-autotune": _NO_GPU,
    "enforce-eager": _NO_GRAPHS,
    "jit-monitor-verbose": "nothing is compiled at run time",
    "skip-mm-profiling": "memory is computed, not profiled",
    "trust-remote-code": "no code that comes with a model is ever run",
    "use-tqdm-on-load": "loading shows its progress in any case",
}
_ACCEPTED_VALUES = {
    "attention-backend": "kernels are chosen for the CPU; see --isa",
    "attention-config": "kernels are chosen for the CPU; see --isa",
    "compilation-config": _NO_GRAPHS,
    "gpu-memory-utilization": "give --memory-budget-bytes instead",
    "hf-token": "models are read from this machine alone",
    "jit-monitor-mode": "nothing is compiled at run time",
    "kernel-config": "kernels are chosen for the CPU; see --isa",
    "linear-backend": "kernels are chosen for the CPU; see --isa",
    "max-cudagraph-capture-size": _NO_GRAPHS,
    "max-parallel-loading-workers": "weights are packed by all threads",
    "optimization-level": _NO_GRAPHS,
    "performance-mode": "the loop is chosen by --overlap",
    "renderer-num-workers": "prompts are rendered in the server process",
    "safetensors-load-strategy": "files are mapped and their pages dropped after packing",
    "safetensors-prefetch-block-size": "files are mapped and their pages dropped after packing",
    "safetensors-prefetch-num-threads": "files are mapped and their pages dropped after packing",
    "uvicorn-log-level": "headrace decides what it logs by --log-level",
}
# Accepted at the values that mean what headrace does; any other value is refused for the reason given.
_ACCEPTED_AT: dict[str, tuple[tuple[str, ...], str]] = {
    "api-server-count": (("1",), "one server process"),
    "config-format": (("auto", "hf"), "Hugging Face's config.json and GGUF are read"),
    "convert": (("auto", "none"), "only text generation is supported yet"),
    "cpu-offload-gb": (("0", "0.0"), "weights are in main memory already"),
    "data-parallel-size": (("1",), _ONE_PROCESS),
    "decode-context-parallel-size": (("1",), _ONE_PROCESS),
    "distributed-executor-backend": (("uni", "mp"), _ONE_PROCESS),
    "enable-chunked-prefill": (("true",), "prompts are always computed in chunks of --max-num-batched-tokens"),
    "kv-offloading-backend": (("native",), "KV offloading is not supported yet"),
    "load-format": (("auto", "safetensors", "gguf"), "the format is read from the file"),
    "logprobs-mode": (("raw_logprobs",), "logprobs are those of the raw logits"),
    "long-prefill-token-threshold": (("0",), "not supported yet"),
    "model-impl": (("auto", "vllm"), "there is one implementation of each architecture"),
    "nnodes": (("1",), _ONE_PROCESS),
    "node-rank": (("0",), _ONE_PROCESS),
    "offload-backend": (("auto",), "weights are in main memory already"),
    "pipeline-parallel-size": (("1",), _ONE_PROCESS),
    "prefill-context-parallel-size": (("1",), _ONE_PROCESS),
    "prefill-schedule-interval": (("1",), "not supported yet"),
    "prefix-caching-hash-algo": (("sha256",), "the prefix cache hashes with SHA-256"),
    "response-role": (("assistant",), "the role of an answer is assistant"),
    "runner": (("auto", "generate"), "only text generation is supported yet"),
    "stream-interval": (("1",), "every step's tokens are sent"),
    "tensor-parallel-size": (("1",), _ONE_PROCESS),
    "tokenizer-mode": (("auto", "hf"), "there is one tokenizer implementation"),
    "tool-strict-level": (("auto",), "tool calls are not parsed yet"),
}
_REFUSED = {
    "adapters are not supported yet": """
        default-mm-loras enable-lora enable-mixed-moe-lora-format enable-moe-shared-loras enable-tower-connector-lora
        fully-sharded-loras lora-dtype lora-modules lora-target-modules max-cpu-loras max-lora-cls-labels max-lora-rank
        max-loras specialize-active-lora""",
    "images, video and audio are not supported yet": """
        allowed-local-media-path allowed-media-domains disable-chunked-mm-input ec-manager-config ec-transfer-config
        enable-mm-embeds enable-mm-processor-stats interleave-mm-strings language-model-only limit-mm-per-prompt
        media-io-kwargs mm-device-do-normalize mm-encoder-attn-backend mm-encoder-attn-dtype
        mm-encoder-fp8-scale-path mm-encoder-fp8-scale-save-margin mm-encoder-fp8-scale-save-path mm-encoder-only
        mm-encoder-tp-mode mm-hasher-algorithm mm-ipc-gpu-memory-gb mm-processor-cache-gb mm-processor-cache-type
        mm-processor-device mm-processor-kwargs mm-shm-cache-max-object-size-mb mm-tensor-ipc
        trust-request-mm-kwargs video-pruning-method video-pruning-rate""",
    "speculative decoding is not supported yet": """
        per-request-spec-decode-metrics spec-method spec-model spec-tokens speculative-config""",
    "structured output, tool calls and reasoning are not parsed yet": """
        anthropic-disabled-thinking-effort cohere-format cohere-is-reasoning-model enable-auto-tool-choice
        exclude-tools-when-tool-choice-none reasoning-config reasoning-parser reasoning-parser-plugin
        structured-outputs-config tool-call-parser tool-parser-plugin tool-server""",
    "one engine process on one machine; parallelism is not supported yet": """
        -api-process-count -api-process-rank all2all-backend cp-kv-cache-interleave-size
        cpu-distributed-timeout-seconds data-parallel-address data-parallel-backend data-parallel-external-lb
        data-parallel-hybrid-lb data-parallel-multi-port-external-lb data-parallel-rank data-parallel-rpc-port
        data-parallel-size-local data-parallel-start-rank data-parallel-supervisor-port dbo-decode-token-threshold
        dbo-prefill-token-threshold dcp-comm-backend dcp-kv-cache-interleave-size dcp-q-replicate
        distributed-timeout-seconds dp-supervisor-probe-failure-threshold dp-supervisor-probe-interval-s
        dp-supervisor-probe-timeout-s dp-sync-interval elastic-ep-max-dp-size enable-batch-sharded-sampling enable-dbo
        enable-elastic-ep enable-ep-weight-filter enable-eplb enable-expert-parallel enable-fault-tolerance
        enable-hc-sp enable-nccl-comm-suspend enable-scale-out enable-shm-tensor-arena eplb-config
        expert-placement-strategy fault-tolerance-config headless master-addr master-port ray-workers-use-nsight
        ubatch-size""",
    "KV transfer, offloading and events are not supported yet": """
        cpu-offload-params kv-events-config kv-offloading-size kv-sharing-fast-prefill kv-transfer-config
        offload-group-size offload-num-in-group offload-params offload-prefetch-step prefix-cache-retention-interval
        prefix-match-unit""",
    "architectures with recurrent state or experts are not supported yet": """
        enable-bf16x3-router-gemm enable-mamba-cache-stochastic-rounding enable-mamba-shared-prefix-checkpoint
        enable-return-routed-experts engram-config gdn-prefill-backend kda-decode-backend kda-prefill-backend
        mamba-backend mamba-block-size mamba-cache-dtype mamba-cache-mode mamba-cache-philox-rounds mamba-config
        mamba-ssm-cache-dtype mamba-ssu-algorithm moe-backend replayssm-buffer-len sparse-indexer-topk-backend
        swa-bounded-replay use-replayssm""",
    "not supported yet: put a reverse proxy that does this in front": """
        allow-credentials allowed-headers allowed-methods allowed-origins api-key enable-ssl-refresh middleware
        ssl-ca-certs ssl-cert-reqs ssl-certfile ssl-ciphers ssl-keyfile""",
    "sleep and live weight updates are not supported yet": """
        enable-sleep-mode sleep-mode-offload-cudagraph sleep-preserve-parameter-names weight-transfer-config""",
    "embeddings, scores and prompt embeddings are not supported yet": """
        aux-output-config enable-flash-late-interaction enable-prompt-embeds io-processor-plugin pooler-config""",
    "limits of the waiting queue are not supported yet": """
        max-num-active-seqs max-num-queued-reqs max-num-queued-tokens""",
    "there are no device graphs": "cudagraph-capture-sizes",
    "set HEADRACE_CACHE to the folder instead": "download-dir",
    "give --revision instead": "code-revision tokenizer-revision",
    "give --kv-cache-memory-bytes instead": "num-gpu-blocks-override",
    "give --num-threads, and taskset or numactl for placement": "numa-bind numa-bind-cpus numa-bind-nodes",
    "code from outside is not loaded": "logits-processors scheduler-cls worker-cls worker-extension-cls",
    "not supported yet": """
        additional-config aggregate-engine-logging allow-deprecated-quantization chat-template-content-format
        collect-detailed-traces cudagraph-metrics custom-histogram-buckets default-chat-template-kwargs device-ids
        diffusion-config disable-access-log-for-endpoints disable-fastapi-docs disable-sliding-window
        enable-force-include-usage enable-layerwise-nvtx-tracing enable-log-deltas enable-log-outputs
        enable-log-requests enable-logging-iteration-details enable-mfu-metrics enable-offline-docs
        enable-per-request-metrics enable-prompt-tokens-details enable-request-id-headers enable-server-load-tracking
        enable-tokenizer-info-endpoint enable-trace-replay fail-on-environ-validation fingerprint-mode
        fingerprint-value generation-config grpc grpc-port h11-max-header-count h11-max-incomplete-event-size
        hf-config-path hf-overrides ignore-patterns ir-op-priority kv-cache-dtype-skip-layers kv-cache-metrics
        kv-cache-metrics-sample log-config-file log-error-stack logging-config long-prefill-token-threshold-adaptive
        max-log-len max-num-scheduled-tokens model-class-overrides model-loader-extra-config model-weights
        otlp-traces-endpoint override-generation-config profiler-config pt-load-map-location quantization-config
        return-sampling-mask return-tokens-as-token-ids scheduler-reserve-full-isl show-hidden-metrics-for-version
        skip-tokenizer-init sse-keep-alive-interval tokens-only trust-request-chat-template use-fp64-gumbel watermark
        watermark-config""",
}
SHORT_FLAGS = {
    "-tp": "--tensor-parallel-size",
    "-pp": "--pipeline-parallel-size",
    "-dp": "--data-parallel-size",
    "-dcp": "--decode-context-parallel-size",
    "-pcp": "--prefill-context-parallel-size",
    "-cc": "--compilation-config",
    "-ac": "--attention-config",
    "-sc": "--speculative-config",
    "-q": "--quantization",
}
"""vLLM's short spellings, of names in these tables and of options here."""


@functools.cache
def vllm_flags() -> dict[str, VllmFlag]:
    """Every vLLM name that is not an option here, by name in dashes without the leading two."""
    table = {name: VllmFlag(name, "accepted", why, takes_value=False) for name, why in _ACCEPTED_SWITCHES.items()}
    table |= {name: VllmFlag(name, "accepted", why) for name, why in _ACCEPTED_VALUES.items()}
    for name, (only, why) in _ACCEPTED_AT.items():
        switch = only == ("true",)
        table[name] = VllmFlag(name, "accepted", why, takes_value=not switch, only=only)
    for why, names in _REFUSED.items():
        table |= {name: VllmFlag(name, "refused", why) for name in names.split()}
    return table


def judge_vllm_option(name: str, value: Any) -> str | None:
    """A warning for an option of vLLM's that has no effect here; None when the name is none of vLLM's.

    name: in dashes or underscores, as a flag, keyword or key of a file. Raises ConfigError for refused ones.
    """
    flag = vllm_flags().get(name.replace("_", "-"))
    if flag is None:
        return None
    shown = "true" if value is True else "false" if value is False else "none" if value is None else str(value)
    if flag.status == "refused":
        raise ConfigError(f"vLLM's option {flag.name!r} is refused: {flag.reason}", param=name)
    if flag.only is not None and shown.lower() not in flag.only:
        accepted = " or ".join(flag.only)
        raise ConfigError(f"vLLM's option {flag.name!r} may only be {accepted} here: {flag.reason}", param=name)
    return f"vLLM's option {flag.name!r} has no effect: {flag.reason}"
