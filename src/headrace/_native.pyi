"""The native module: kernels, thread pool, plan executor, sampler (native/)."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

PLAN_VERSION: int
HEADER_VERSION: int
MAX_GATES: int

def available_isas() -> list[str]:
    """Kernel levels that this CPU runs, best first."""

class GateTimeoutError(TimeoutError):
    """A gate's counter did not reach the header's target in time; the step was abandoned half-way."""

class Executor:
    """Runs a plan's calls over rows. One thread at a time may call it; a second one gets RuntimeError."""

    def __init__(self, isa: str, num_threads: int) -> None:
        """isa: a name of available_isas(), "" for the best. num_threads includes the caller. Raises ValueError."""
    @property
    def isa(self) -> str: ...
    @property
    def num_threads(self) -> int: ...
    @property
    def num_steps(self) -> int:
        """Steps completed since the executor was made."""
    @property
    def num_calls(self) -> int: ...
    @property
    def num_segments(self) -> int: ...
    def load_plan(
        self, calls: bytes | bytearray | memoryview | NDArray[np.void], segment_starts: Sequence[int]
    ) -> None:
        """Take over Call records (native/include/plan.h) and forget all rows.

        segment_starts: the first call of each segment, ascending from 0. Raises ValueError for calls that make no
        sense.
        """
    def set_rows(
        self,
        max_num_seqs: int,
        max_model_len: int,
        max_tokens: int,
        max_logits_rows: int,
        max_top_logprobs: int,
        num_groups: int,
        max_blocks_per_row: Sequence[int],
    ) -> None:
        """Allocate row state and outputs; forgets the KV groups. Raises ValueError."""
    def set_kv_group(
        self,
        index: int,
        base_addr: int,
        num_blocks: int,
        block_size: int,
        block_stride: int,
        layer_stride: int,
        head_stride: int,
        v_offset: int,
        dtype: int = 0,
    ) -> None:
        """Give a layer group its memory (strides in elements) and empty its tables.

        dtype: KvDtype in native/include/plan.h. Raises ValueError.
        """
    def step(self, header: NDArray[np.int32]) -> None:
        """Run the whole plan for one step header, without the GIL.

        Raises ValueError for a malformed header, before anything is changed, and GateTimeoutError.
        """
    def run_calls(self, header: NDArray[np.int32], first_call: int, num_calls: int) -> None:
        """Run a slice of the plan. Call 0 begins the step (header writes included); later slices repeat its header."""
    def run_segment(self, header: NDArray[np.int32], segment: int) -> None:
        """`run_calls` for one segment."""
    def outputs(self) -> dict[str, NDArray[Any]]:
        """Views of the last step's R logits rows with K = max_top_logprobs, overwritten by the next step.

        token_ids int32 [R]: the sampled id, or the scored one. logprobs float32 [R] of the raw logits and ranks int32
        [R] from 1: NaN and 0 where not asked for. top_ids int32 [R, K] and top_logprobs float32 [R, K], likeliest
        first: -1 and NaN past those asked for.
        """
    def row_tokens(self, row: int) -> NDArray[np.int32]:
        """View of the row's token ids, [max_model_len]; the first row_length(row) are known."""
    def row_length(self, row: int) -> int:
        """How many of the row's tokens are known, sampled ones included."""
    def row_table(self, group: int, row: int) -> NDArray[np.int32]:
        """View of the row's block table in a layer group, [num_blocks of the row]."""
    @property
    def token_rows(self) -> NDArray[np.int32]:
        """The row of each token of the last step, [T]; -1 is padding."""
    @property
    def token_positions(self) -> NDArray[np.int32]:
        """The position of each token of the last step, [T]."""
    @property
    def logits_tokens(self) -> NDArray[np.int32]:
        """The token index of each logits row of the last step, [R]."""
    def progress(self) -> tuple[int, int]:
        """(step id, gate) passed last; gate -1 when the step is over; (-1, -1) before the first. Any thread may ask."""
    def raise_gate(self, gate: int, value: int) -> None:
        """Raise a gate's counter; it never falls. Any thread may call it, also during a step."""
    def set_gate_timeout(self, seconds: float) -> None:
        """How long a waiting gate waits; 60 s unless set."""
    def memory_bytes(self) -> int:
        """Bytes of row state, outputs and scratch. Sizes the scratch and checks plan, rows and KV groups together."""
    def profile(self, on: bool, trace: bool = False) -> None:
        """Start (from zero) or stop adding up the time of each call; with `trace` keep every thread's shares too."""
    def call_times_ns(self) -> list[int]:
        """Accumulated wall time of each call, waiting included."""
    def call_busy_ns(self) -> list[int]:
        """Accumulated time of each call in kernels, over all threads."""
    def call_phases(self) -> list[int]:
        """How many phases of each call were handed out to the threads; each ends with a wait for its last unit."""
    def trace(self) -> list[tuple[int, int, int, int, int]]:
        """(thread, call, phase, start_ns, end_ns) of every share, thread by thread, on the steady clock."""
    def close(self) -> None:
        """End the threads and drop plan and rows; views stay readable. Idempotent."""

def pack(
    source: int,
    source_address: int,
    row_order: NDArray[np.int64] | None,
    num_rows: int,
    k: int,
    target_address: int,
    first_block: int = 0,
    block_step: int = 1,
    num_threads: int = 1,
    target: int | None = None,
) -> bool:
    """Pack a matrix (headrace::Source elements) into column blocks of a headrace::Format, by default the lossless one.

    False when a value cannot be kept without loss or, for another format, is no number or out of its range.
    """

def skip_strings(data: memoryview, position: int, count: int) -> int:
    """Where an array of length-prefixed strings that begins at `position` ends; -1 when it passes the end of `data`."""

def read_strings(data: memoryview, position: int, count: int) -> list[str]:
    """The strings. Raises ValueError past the end of `data` and UnicodeDecodeError."""

def packed_bytes(format: int, n: int, k: int) -> int:
    """Size of an [n, k] matrix in a packed format (headrace::Format)."""

def rope_table(inv_freq: NDArray[np.float64], max_len: int, attention_factor: float = 1.0) -> NDArray[np.float32]:
    """cos and sin of position * inv_freq, both times the factor: [max_len, len(inv_freq), 2]."""

# One kernel of one level on plain arrays, for parity tests. All raise ValueError for shapes that do not fit.

def op_prepare_row(
    isa: str, format: int, x: NDArray[np.float32], norm_weight: NDArray[np.float32] | None = None, eps: float = 0.0
) -> NDArray[np.uint8]: ...
def op_linear(
    isa: str,
    format: int,
    weight: NDArray[np.uint8],
    x: NDArray[np.float32],
    n: int,
    k_segments: int = 1,
    norm_weight: NDArray[np.float32] | None = None,
    eps: float = 0.0,
    bias: NDArray[np.float32] | None = None,
    residual: NDArray[np.float32] | None = None,
    silu_mul: bool = False,
    blocks: Sequence[tuple[int, int]] | None = None,
) -> NDArray[np.float32]: ...
def op_embed_row(
    isa: str, format: int, weight: NDArray[np.uint8], vocab: int, hidden: int, token: int
) -> NDArray[np.float32]: ...
def op_rms_norm(isa: str, x: NDArray[np.float32], weight: NDArray[np.float32], eps: float) -> NDArray[np.float32]: ...
def op_rope(isa: str, x: NDArray[np.float32], table_row: NDArray[np.float32]) -> NDArray[np.float32]: ...
def op_kv_store(
    isa: str,
    memory: NDArray[np.float32] | NDArray[np.uint16],
    strides: Sequence[int],
    layer: int,
    kv_head: int,
    block: int,
    offset: int,
    k: NDArray[np.float32],
    v: NDArray[np.float32],
) -> None: ...
def op_attention(
    isa: str,
    memory: NDArray[np.float32] | NDArray[np.uint16],
    strides: Sequence[int],
    layer: int,
    kv_head: int,
    table: NDArray[np.int32],
    position: int,
    q: NDArray[np.float32],
    scale: float,
    num_tokens: int = 1,
    in_splits: bool = False,
) -> NDArray[np.float32]: ...
def op_silu_mul(isa: str, gate: NDArray[np.float32], up: NDArray[np.float32]) -> NDArray[np.float32]: ...
def op_add(isa: str, a: NDArray[np.float32], b: NDArray[np.float32]) -> NDArray[np.float32]: ...
def op_argmax(isa: str, x: NDArray[np.float32]) -> int: ...
def op_log_sum_exp(isa: str, x: NDArray[np.float32]) -> float: ...
def op_gumbel(
    isa: str, seed: int, sample_index: int, position: int, ids: NDArray[np.int32] | None = None, *, n: int
) -> NDArray[np.float32]: ...

# What the machine can give at best (native/kernels/probes/). isa: its loops, or the next lower level's.

def probe_compute(isa: str, kind: str, num_threads: int, seconds: float) -> float:
    """10^9 operations per second of all threads; kind: f32, bf16, int8 or q4. 0 when no level has such a loop."""

def probe_read(isa: str, sizes: Sequence[int], num_threads: int, seconds: float) -> list[float]:
    """GB/s that the threads read together from a working set of each size in bytes."""

class StepQueue:
    """A native thread that runs an executor's steps in order, while Python prepares the next one.

    Nobody else may step the executor while steps are pending.
    """

    def __init__(self, executor: Executor) -> None: ...
    @property
    def num_pending(self) -> int:
        """Steps submitted and not yet collected."""
    def submit(self, header: NDArray[np.int32]) -> None:
        """Queue a step header (copied) and return at once. Raises RuntimeError after `close`."""
    def collect(self) -> dict[str, NDArray[Any]]:
        """Wait, without the GIL, for the oldest pending step: its outputs as `Executor.outputs` names them, owned.

        Raises what the step raised (those submitted behind a failed one raise the same), RuntimeError when none is
        pending or the queue is closed.
        """
    def close(self) -> None:
        """Let the step under way finish, drop those behind it, end the thread. Idempotent."""
