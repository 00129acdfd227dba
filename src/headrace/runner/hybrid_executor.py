"""HybridExecutor: native calls with reference faces in between, for ops that have no native face."""

from __future__ import annotations

import itertools
import logging

import numpy as np
from numpy.typing import NDArray

from headrace import _native
from headrace.graph.plan import Plan
from headrace.runner import step_header
from headrace.runner.reference_faces import ReferenceFaces, StepContext

log = logging.getLogger(__name__)


class HybridExecutor:
    """Runs each stretch of native calls in one native call and each reference call in NumPy, on the same buffers.

    Says once which ops are slow. Raises ValueError when the first call is not native (it applies the header).
    """

    def __init__(self, plan: Plan, native: _native.Executor, faces: ReferenceFaces) -> None:
        self._plan, self._native, self._faces = plan, native, faces
        self._stretches = [
            (face, [i for i, _ in calls])
            for face, calls in itertools.groupby(enumerate(plan.calls), lambda c: c[1].face)
        ]
        if self._stretches[0][0] != "cpu":
            raise ValueError("the first call of a plan must have a native face")
        slow = sorted({c.op for c in plan.calls if c.face == "reference"})
        log.warning("no native face for %s: running the NumPy reference, which is slow", ", ".join(slow))

    def step(self, header: NDArray[np.int32]) -> None:
        context: StepContext | None = None
        for face, indices in self._stretches:
            if face == "cpu":
                self._native.run_calls(header, indices[0], len(indices))
                continue
            context = context or self._context(header)
            for i in indices:
                self._faces.run(self._plan.calls[i], context)

    def outputs(self) -> dict[str, NDArray[np.generic]]:
        return self._native.outputs()

    def close(self) -> None:
        self._native.close()
        self._faces.close()

    def _context(self, header: NDArray[np.int32]) -> StepContext:
        native, parsed = self._native, step_header.decode(header)
        rows, positions = native.token_rows, native.token_positions
        ids = [int(native.row_tokens(int(r))[p]) if r >= 0 else 0 for r, p in zip(rows, positions, strict=True)]
        return StepContext(
            token_ids=np.asarray(ids, np.int32),
            token_rows=rows,
            token_positions=positions,
            logits_tokens=logits_tokens(parsed),
            last_tokens=last_tokens(parsed),
            tables=native.row_table,
            overlay=parsed.overlay,
        )


def logits_tokens(header: step_header.StepHeader) -> NDArray[np.int64]:
    """Index in the step of the token of each logits row: int64 [R]."""
    starts = _starts(header)
    return np.asarray([starts[r.entry] + r.offset for r in header.logits_rows], np.int64)


def last_tokens(header: step_header.StepHeader) -> dict[int, int]:
    """Row → index in the step of its last token."""
    starts = _starts(header)
    return {e.row: starts[i] + e.query_length - 1 for i, e in enumerate(header.entries) if e.row >= 0}


def _starts(header: step_header.StepHeader) -> list[int]:
    return [0, *itertools.accumulate(e.query_length for e in header.entries)]
