"""Plan calls as the native executor's Call records (native/include/plan.h)."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from headrace.graph.plan import Plan
from headrace.kernels.table import OP_TABLE

CALL_DTYPE = np.dtype(
    [("op", "<u4"), ("flags", "<u4"), ("ptr", "<u8", (12,)), ("dim", "<i8", (12,)), ("scalar", "<f8", (4,))]
)
"""One Call: 232 bytes, no padding."""


def bind(plan: Plan, bases: Mapping[str, int]) -> NDArray[np.void]:
    """Resolve every (buffer, offset) to an address: Call records [num_calls].

    bases: buffer → address; a buffer that is not bound (0, such as an overlay nobody uses) leaves the operand absent.
    """
    calls = np.zeros(len(plan.calls), CALL_DTYPE)
    for record, call in zip(calls, plan.calls, strict=True):
        record["op"] = OP_TABLE[call.op].number
        record["flags"] = call.flags
        for i, ref in enumerate(call.refs):
            if ref is not None and bases[ref.buffer]:
                record["ptr"][i] = bases[ref.buffer] + ref.offset_bytes
        record["dim"][: len(call.dims)] = call.dims
        record["scalar"][: len(call.scalars)] = call.scalars
    return calls
