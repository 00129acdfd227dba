"""A small float32 llama as a hand-written plan for the executor, and the same model in a few lines of NumPy."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from headrace import _native
from headrace.runner import step_header as sh

F32 = npt.NDArray[np.float32]

CALL_DTYPE = np.dtype(
    [("op", "<u4"), ("flags", "<u4"), ("ptr", "<u8", (12,)), ("dim", "<i8", (12,)), ("scalar", "<f8", (4,))]
)
EMBED, LINEAR, RMS_NORM, ATTENTION, QKV_PREPARE, TAP, GATE, SAMPLE = 1, 2, 3, 6, 9, 10, 11, 12
FORMAT_F32 = 4
RESIDUAL, SILU_MUL, LOGITS_ROWS = 1, 2, 4
EPS = 1e-5

VOCAB, HIDDEN, HEADS, KV_HEADS, HEAD_DIM, INTERMEDIATE, LAYERS = 130, 64, 4, 2, 16, 48, 2
BLOCK_SIZE = 16

PROMPT = [5, 17, 129, 0, 44, 44, 93, 2, 61, 8, 120, 33, 71, 9, 100, 3, 27, 86, 12, 55]


def pack_f32(weight: F32) -> F32:
    """[n, k] → [ceil(n / 16), k, 16], padding zero."""
    n, k = weight.shape
    packed = np.zeros((-(-n // 16), k, 16), np.float32)
    for block in range(packed.shape[0]):
        rows = weight[block * 16 : block * 16 + 16]
        packed[block, :, : rows.shape[0]] = rows.T
    return packed


def _call(op: int, ptr: tuple[int, ...], dim: tuple[int, ...], scalar: float = 0.0, flags: int = 0) -> np.void:
    record = np.zeros((), CALL_DTYPE)
    record["op"], record["flags"], record["scalar"][0] = op, flags, scalar
    record["ptr"][: len(ptr)], record["dim"][: len(dim)] = ptr, dim
    return record


def _address(array: npt.NDArray[np.generic]) -> int:
    return array.ctypes.data


@dataclass
class ToyModel:
    """Weights, buffers and KV memory of the toy, and an executor that runs it."""

    num_threads: int = 1
    isa: str = "portable"
    max_num_seqs: int = 4
    max_model_len: int = 64
    max_tokens: int = 96
    max_logits_rows: int = 64
    num_blocks: int = 24
    seed: int = 0
    layers: list[dict[str, F32]] = field(default_factory=list)

    def __post_init__(self) -> None:
        rng = np.random.default_rng(self.seed)

        def normal(*shape: int) -> F32:
            return (rng.standard_normal(shape) * 0.3).astype(np.float32)

        self.embed = normal(VOCAB, HIDDEN) * 3
        qkv_width = (HEADS + 2 * KV_HEADS) * HEAD_DIM
        for _ in range(LAYERS):
            self.layers.append(
                {
                    "attn_norm": 1 + normal(HIDDEN),
                    "qkv": normal(qkv_width, HIDDEN),
                    "o": normal(HIDDEN, HEADS * HEAD_DIM),
                    "mlp_norm": 1 + normal(HIDDEN),
                    "gate": normal(INTERMEDIATE, HIDDEN),
                    "up": normal(INTERMEDIATE, HIDDEN),
                    "down": normal(HIDDEN, INTERMEDIATE),
                }
            )
        self.final_norm = 1 + normal(HIDDEN)
        self.head = normal(VOCAB, HIDDEN)
        angles = np.outer(np.arange(self.max_model_len), 10000.0 ** (-np.arange(HEAD_DIM // 2) / (HEAD_DIM // 2)))
        self.rope = np.stack([np.cos(angles), np.sin(angles)], axis=-1).astype(np.float32)

        self.x = np.zeros((self.max_tokens, HIDDEN), np.float32)
        self.qkv = np.zeros((self.max_tokens, qkv_width), np.float32)
        self.attended = np.zeros((self.max_tokens, HEADS * HEAD_DIM), np.float32)
        self.mlp = np.zeros((self.max_tokens, INTERMEDIATE), np.float32)
        self.logits = np.zeros((self.max_logits_rows, VOCAB), np.float32)
        self.tapped = np.zeros((self.max_num_seqs, HIDDEN), np.float32)
        self.overlay = normal(3, HIDDEN)
        tile = BLOCK_SIZE * HEAD_DIM
        self.block_floats = LAYERS * KV_HEADS * 2 * tile
        self.kv = np.zeros((self.num_blocks, self.block_floats), np.float32)
        self.executor = self._make_executor(tile)

    def _make_executor(self, tile: int) -> _native.Executor:
        executor = _native.Executor(self.isa, self.num_threads)
        blocks_per_row = -(-self.max_model_len // BLOCK_SIZE)
        executor.set_rows(
            self.max_num_seqs, self.max_model_len, self.max_tokens, self.max_logits_rows, 5, 1, [blocks_per_row]
        )
        strides = (self.block_floats, KV_HEADS * 2 * tile, 2 * tile, tile)
        executor.set_kv_group(0, _address(self.kv), self.num_blocks, BLOCK_SIZE, *strides)
        self.calls = np.stack(self._calls())
        executor.load_plan(self.calls.tobytes(), [0, len(self.calls) - 3, len(self.calls) - 1])
        return executor

    def _calls(self) -> list[np.void]:
        self._packed: list[F32] = []

        def packed(weight: F32) -> int:
            self._packed.append(pack_f32(weight))
            return _address(self._packed[-1])

        def linear(x: F32, out: F32, weight: F32, norm: F32 | None = None, flags: int = 0) -> np.void:
            dim = (*weight.shape, FORMAT_F32, x.shape[1], out.shape[1], 1)
            ptr = (_address(x), _address(out), packed(weight), 0 if norm is None else _address(norm), 0)
            return _call(LINEAR, ptr, dim, EPS, flags)

        calls = [
            _call(
                EMBED,
                (packed(self.embed), _address(self.x), _address(self.overlay)),
                (VOCAB, HIDDEN, FORMAT_F32, len(self.overlay)),
            )
        ]
        for i, w in enumerate(self.layers):
            gate_up = np.stack([w["gate"].reshape(-1, 16, HIDDEN), w["up"].reshape(-1, 16, HIDDEN)], axis=1)
            shape = (0, i, HEADS, KV_HEADS, HEAD_DIM, HEAD_DIM, self.qkv.shape[1])
            calls += [
                linear(self.x, self.qkv, w["qkv"], w["attn_norm"]),
                _call(QKV_PREPARE, (_address(self.qkv), _address(self.rope)), shape, EPS),
                _call(
                    ATTENTION,
                    (_address(self.qkv), _address(self.attended)),
                    (0, i, HEADS, KV_HEADS, HEAD_DIM, self.qkv.shape[1], self.attended.shape[1]),
                    HEAD_DIM**-0.5,
                ),
                linear(self.attended, self.x, w["o"], flags=RESIDUAL),
                linear(self.x, self.mlp, gate_up.reshape(-1, HIDDEN), w["mlp_norm"], SILU_MUL),
                linear(self.mlp, self.x, w["down"], flags=RESIDUAL),
                _call(GATE, (), (i,)),
            ]
        calls += [
            _call(TAP, (_address(self.x), _address(self.tapped)), (HIDDEN, HIDDEN)),
            linear(self.x, self.logits, self.head, self.final_norm, LOGITS_ROWS),
            _call(GATE, (), (LAYERS,)),
            _call(SAMPLE, (_address(self.logits),), (VOCAB,)),
        ]
        return calls

    def reference_logits(self, token_ids: list[int], overlay: dict[int, F32] | None = None) -> npt.NDArray[np.float64]:
        """Logits of every token of one sequence, computed in float64: [num_tokens, VOCAB]."""
        x = self.embed[token_ids].astype(np.float64)
        for position, row in (overlay or {}).items():
            x[position] = row
        n = len(token_ids)
        for w in self.layers:
            qkv = _norm(x, w["attn_norm"]) @ w["qkv"].T.astype(np.float64)
            q, k, v = np.split(qkv.reshape(n, -1, HEAD_DIM), [HEADS, HEADS + KV_HEADS], axis=1)
            q, k = self._rotate(q), self._rotate(k)
            k, v = (np.repeat(a, HEADS // KV_HEADS, axis=1) for a in (k, v))
            scores = np.einsum("qhd,khd->hqk", q, k) * HEAD_DIM**-0.5
            scores = np.where(np.tril(np.ones((n, n), bool)), scores, -np.inf)
            p = np.exp(scores - scores.max(axis=-1, keepdims=True))
            p /= p.sum(axis=-1, keepdims=True)
            x = x + np.einsum("hqk,khd->qhd", p, v).reshape(n, -1) @ w["o"].T
            h = _norm(x, w["mlp_norm"])
            gate = h @ w["gate"].T
            x = x + (gate / (1 + np.exp(-gate)) * (h @ w["up"].T)) @ w["down"].T
        return _norm(x, self.final_norm) @ self.head.T

    def _rotate(self, heads: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
        cos, sin = (self.rope[: len(heads), None, :, i].astype(np.float64) for i in (0, 1))
        low, high = np.split(heads, 2, axis=-1)
        return np.concatenate([low * cos - high * sin, high * cos + low * sin], axis=-1)


def _norm(x: npt.NDArray[np.float64], weight: F32) -> npt.NDArray[np.float64]:
    return x / np.sqrt((x * x).mean(axis=-1, keepdims=True) + EPS) * weight


def admit(row: int, token_ids: list[int], block_ids: list[int], **params: object) -> dict[str, object]:
    """Header sections that put a request into a row: `StepHeader(step_id, **merge(admit(...), ...))`."""
    values: dict[str, object] = {
        "temperature": 0.0,
        "top_p": 1.0,
        "top_k": 0,
        "seed": 0,
        "sample_index": 0,
        "num_logprobs": -1,
        "num_prompt_logprobs": -1,
        **params,
    }
    return {
        "token_writes": (sh.TokenWrite(row, 0, tuple(token_ids)),),
        "row_params": (sh.RowParams(row=row, **values),),  # type: ignore[arg-type]
        "table_writes": (sh.TableWrite(0, row, 0, tuple(block_ids)),),
    }


def prefill(row: int, token_ids: list[int], block_ids: list[int], step_id: int = 0, **params: object) -> sh.Words:
    """The header that computes a whole prompt in one step and samples after it."""
    return sh.encode_header(
        sh.StepHeader(
            step_id,
            entries=(sh.Entry(row, 0, len(token_ids)),),
            logits_rows=(sh.LogitsRow(0, len(token_ids) - 1, sh.KIND_SAMPLE),),
            **admit(row, token_ids, block_ids, **params),  # type: ignore[arg-type]
        )
    )


def decode_step(row: int, position: int, step_id: int = 1) -> sh.Words:
    """The header that computes the row's last known token and samples the next; the row has its blocks already."""
    return sh.encode_header(
        sh.StepHeader(
            step_id,
            entries=(sh.Entry(row, position, 1),),
            logits_rows=(sh.LogitsRow(0, 0, sh.KIND_SAMPLE),),
        )
    )


def sampled(model: ToyModel) -> int:
    """The id that the first logits row of the last step gave."""
    return int(model.executor.outputs()["token_ids"][0])


def generate(model: ToyModel, prompt: list[int], num_tokens: int, **params: object) -> list[int]:
    """Prefill and decode in row 0; the tokens sampled."""
    model.executor.step(prefill(0, prompt, [3, 9, 4], **params))
    tokens = [*prompt, sampled(model)]
    for step in range(1, num_tokens):
        model.executor.step(decode_step(0, len(tokens) - 1, step))
        tokens.append(sampled(model))
    return tokens[len(prompt) :]
