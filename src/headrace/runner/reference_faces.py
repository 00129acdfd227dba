"""Running a plan's calls on their NumPy reference faces, over the same memory the native faces use."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from headrace.cache.spec import LayerGroupSpec
from headrace.graph.ir import VectorSlot, WeightSlot
from headrace.graph.plan import BufferRef, PackedWeight, Plan, PlanCall
from headrace.kernels.formats import INTEGER_FORMATS
from headrace.kernels.lowering import LINEAR_LOGITS_ROWS, LINEAR_RESIDUAL, LINEAR_SILU_MUL
from headrace.kernels.reference import attention as attention_faces
from headrace.kernels.reference import dense
from headrace.kernels.reference.attention import KvMemory
from headrace.weights.packed import PackedFormat, unpack

F32 = NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class StepContext:
    """What a step's calls read beside buffers. T tokens, R logits rows.

    token_ids, token_rows, token_positions: int32 [T]; a token of row -1 is padding. logits_tokens: int64 [R], index
    of the token each logits row belongs to. last_tokens: row → index of its last token. tables: (group, row) → ids.
    """

    token_ids: NDArray[np.int32]
    token_rows: NDArray[np.int32]
    token_positions: NDArray[np.int32]
    logits_tokens: NDArray[np.int64]
    last_tokens: Mapping[int, int]
    tables: Callable[[int, int], NDArray[np.int32]]
    overlay: Sequence[tuple[int, int]] = ()


class ReferenceFaces:
    """Faces for every op but `sample` (which needs row parameters) and `gate` (which has no value).

    memory: buffer name → f32 view of the whole buffer; "weights" as uint8. kv: one view per layer group.
    Unpacked weights are kept, so a plan runs at a usable speed; this is the slow truth, not a product.
    """

    def __init__(
        self,
        plan: Plan,
        memory: Mapping[str, NDArray[np.generic]],
        kv: Sequence[KvMemory],
        specs: Sequence[LayerGroupSpec],
    ) -> None:
        self._plan, self._memory, self._kv, self._specs = plan, memory, kv, specs
        self._weights = {w.offset_bytes: w for w in plan.weights}
        self._unpacked: dict[int, F32] = {}
        self._faces: dict[str, Callable[[PlanCall, StepContext], None]] = {
            "embed": self._embed,
            "linear": self._linear,
            "rms_norm": self._rms_norm,
            "rope": self._rope,
            "kv_store": self._kv_store,
            "attention": self._attention,
            "silu_mul": self._silu_mul,
            "add": self._add,
            "qkv_prepare": self._qkv_prepare,
            "tap": self._tap,
        }

    def run(self, call: PlanCall, step: StepContext) -> None:
        """Run one call. KeyError for an op without a face here."""
        self._faces[call.op](call, step)

    def close(self) -> None:
        """Let go of the buffers."""
        self._memory, self._kv, self._unpacked = {}, (), {}

    def rows(self, ref: BufferRef | None, num_rows: int, stride: int, width: int) -> F32:
        """A view [num_rows, width] of rows `stride` apart."""
        if ref is None:
            raise ValueError("the operand is absent")
        flat = self._memory[ref.buffer].view(np.float32)[ref.offset_bytes // 4 :]
        view: F32 = np.lib.stride_tricks.as_strided(flat, (num_rows, width), (stride * 4, 4))
        return view

    def _weight(self, ref: BufferRef | None) -> tuple[F32, str]:
        """Unpacked [N, K] (vectors [N]) and the format."""
        if ref is None:
            raise ValueError("the operand is absent")
        packed = self._weights[ref.offset_bytes]
        if ref.offset_bytes not in self._unpacked:
            self._unpacked[ref.offset_bytes] = self._unpack(packed)
        return self._unpacked[ref.offset_bytes], packed.format

    def _unpack(self, packed: PackedWeight) -> F32:
        raw = self._memory["weights"].view(np.uint8)[packed.offset_bytes : packed.offset_bytes + packed.size_bytes]
        if isinstance(packed.slot, VectorSlot):
            return raw.view(np.float32).copy()
        slot: WeightSlot = packed.slot
        return unpack(PackedFormat[packed.format.upper()], raw, slot.num_outputs, slot.num_inputs)

    def _vector(self, ref: BufferRef | None) -> F32 | None:
        return None if ref is None else self._weight(ref)[0]

    def _embed(self, call: PlanCall, step: StepContext) -> None:
        hidden = call.dims[1]
        out = self.rows(call.refs[1], len(step.token_ids), hidden, hidden)
        dense.embed(self._weight(call.refs[0])[0], step.token_ids, out)
        for token, row in step.overlay:
            out[token] = self.rows(call.refs[2], row + 1, hidden, hidden)[row]

    def _linear(self, call: PlanCall, step: StepContext) -> None:
        num_outputs, num_inputs, _, in_stride, out_stride, _ = call.dims
        num_tokens = len(step.token_ids)
        x = self.rows(call.refs[0], num_tokens, in_stride, num_inputs)
        if call.flags & LINEAR_LOGITS_ROWS:
            x = x[step.logits_tokens]
        norm = self._vector(call.refs[3])
        if norm is not None:
            x = dense.rms_norm(x, norm, call.scalars[0])
        weight, fmt = self._weight(call.refs[2])
        integer = PackedFormat[fmt.upper()] in INTEGER_FORMATS
        if call.flags & LINEAR_SILU_MUL:
            gate, up = (dense.linear(x, w, integer=integer) for w in dense.split_gate_up(weight))
            result, width = dense.silu_mul(gate, up), num_outputs // 2
        else:
            result, width = dense.linear(x, weight, integer=integer, bias=self._vector(call.refs[4])), num_outputs
        out = self.rows(call.refs[1], len(result), out_stride, width)
        out[:] = out + result if call.flags & LINEAR_RESIDUAL else result

    def _rms_norm(self, call: PlanCall, step: StepContext) -> None:
        width, num_vectors, in_stride, out_stride = call.dims
        num_tokens = len(step.token_ids)
        x = self.rows(call.refs[0], num_tokens, in_stride, width * num_vectors).reshape(num_tokens, num_vectors, width)
        result = dense.rms_norm(x, self._weight(call.refs[2])[0], call.scalars[0])
        self.rows(call.refs[1], num_tokens, out_stride, width * num_vectors)[:] = result.reshape(num_tokens, -1)

    def _rope(self, call: PlanCall, step: StepContext) -> None:
        num_heads, head_dim, rotary_dim, stride = call.dims
        x = self.rows(call.refs[0], len(step.token_ids), stride, num_heads * head_dim)
        heads = x.reshape(-1, num_heads, head_dim).copy()
        attention_faces.rope(heads, self._rope_table(call.refs[1], rotary_dim), step.token_positions, rotary_dim)
        x[:] = heads.reshape(x.shape)

    def _rope_table(self, ref: BufferRef | None, rotary_dim: int) -> F32:
        half, length = rotary_dim // 2, self._plan.limits["max_model_len"]
        return self.rows(ref, length, 2 * half, 2 * half).reshape(length, half, 2)

    def _kv_view(self, group: int, layer: int) -> attention_faces.KvView:
        s = self._specs[group]
        strides = (s.block_stride, s.layer_stride, s.head_stride, s.v_offset)
        return attention_faces.KvView(self._kv[group], s.block_size, *strides, layer, s.head_dim)

    def _store(self, group: int, layer: int, k: F32, v: F32, step: StepContext) -> None:
        """k, v [T, kv_heads, head_dim] into the slots of their tokens."""
        kv = self._kv_view(group, layer)
        for t, (row, position) in enumerate(zip(step.token_rows, step.token_positions, strict=True)):
            if row >= 0:
                attention_faces.kv_store(kv, step.tables(group, int(row)), int(position), k[t], v[t])

    def _kv_store(self, call: PlanCall, step: StepContext) -> None:
        group, layer, num_kv_heads, head_dim, k_stride, v_stride = call.dims
        shape, width = (-1, num_kv_heads, head_dim), num_kv_heads * head_dim
        k = self.rows(call.refs[0], len(step.token_ids), k_stride, width).reshape(shape)
        v = self.rows(call.refs[1], len(step.token_ids), v_stride, width).reshape(shape)
        self._store(group, layer, k, v, step)

    def _attention(self, call: PlanCall, step: StepContext) -> None:
        group, layer, num_heads, num_kv_heads, head_dim, q_stride, out_stride = call.dims
        kv, width = self._kv_view(group, layer), num_heads * head_dim
        q = self.rows(call.refs[0], len(step.token_ids), q_stride, width)
        out = self.rows(call.refs[1], len(step.token_ids), out_stride, width)
        for t, (row, position) in enumerate(zip(step.token_rows, step.token_positions, strict=True)):
            if row >= 0:
                heads = q[t].reshape(num_heads, head_dim)
                table = step.tables(group, int(row))
                result = attention_faces.attention(kv, table, int(position), heads, num_kv_heads, call.scalars[0])
                out[t] = result.reshape(-1)

    def _silu_mul(self, call: PlanCall, step: StepContext) -> None:
        a, b, out = self._three(call, step)
        out[:] = dense.silu_mul(a, b)

    def _add(self, call: PlanCall, step: StepContext) -> None:
        a, b, out = self._three(call, step)
        out[:] = a + b

    def _three(self, call: PlanCall, step: StepContext) -> tuple[F32, F32, F32]:
        width, *strides = call.dims
        a, b, c = (
            self.rows(ref, len(step.token_ids), stride, width)
            for ref, stride in zip(call.refs[:3], strides, strict=True)
        )
        return a, b, c

    def _qkv_prepare(self, call: PlanCall, step: StepContext) -> None:
        group, layer, num_heads, num_kv_heads, head_dim, rotary_dim, stride = call.dims
        total = num_heads + 2 * num_kv_heads
        buffer = self.rows(call.refs[0], len(step.token_ids), stride, total * head_dim)
        heads = buffer.reshape(-1, total, head_dim).copy()
        q, k, v = np.split(heads, [num_heads, num_heads + num_kv_heads], axis=1)
        for x, ref in ((q, call.refs[2]), (k, call.refs[3])):
            norm = self._vector(ref)
            if norm is not None:
                x[:] = dense.rms_norm(x, norm, call.scalars[0])
            attention_faces.rope(x, self._rope_table(call.refs[1], rotary_dim), step.token_positions, rotary_dim)
        buffer[:, : num_heads * head_dim] = q.reshape(len(q), -1)
        self._store(group, layer, k, v, step)

    def _tap(self, call: PlanCall, step: StepContext) -> None:
        width, stride = call.dims
        x = self.rows(call.refs[0], len(step.token_ids), stride, width)
        out = self.rows(call.refs[1], self._plan.limits["max_num_seqs"], width, width)
        for row, token in step.last_tokens.items():
            out[row] = x[token]
