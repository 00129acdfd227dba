"""The native sampler alone: a plan of one `sample` call over logits that the test writes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from headrace import _native
from headrace.runner import step_header as sh
from headrace.sampling import SampleSettings
from headrace.sampling.recipe import Logits
from tests.native.toy_plan import CALL_DTYPE, SAMPLE


class NativeSampler:
    """Samples rows of logits [num_rows, vocab]; row i is at `positions[i]` with `settings[i]`."""

    def __init__(
        self,
        vocab: int,
        max_rows: int,
        *,
        isa: str = "",
        num_threads: int = 1,
        max_model_len: int = 256,
        max_top: int = 20,
    ) -> None:
        self.logits = np.zeros((max_rows, vocab), np.float32)
        self.executor = _native.Executor(isa, num_threads)
        self.executor.set_rows(max_rows, max_model_len, max_rows, max_rows, max_top, 0, [])
        call = np.zeros(1, CALL_DTYPE)
        call["op"], call["ptr"][0, 0], call["dim"][0, 0] = SAMPLE, self.logits.ctypes.data, vocab
        self.executor.load_plan(call, [0])

    def sample(
        self,
        logits: Logits,
        settings: Sequence[SampleSettings],
        positions: Sequence[int],
        *,
        rows: Sequence[int] | None = None,
        num_logprobs: int = -1,
    ) -> dict[str, Any]:
        """Outputs for logits [num_rows, vocab]; `rows` places the requests in row state, identity unless given."""
        rows = range(len(settings)) if rows is None else rows
        self.logits[: len(logits)] = logits
        header = sh.StepHeader(
            0,
            entries=tuple(sh.Entry(row, p - 1, 1) for row, p in zip(rows, positions, strict=True)),
            logits_rows=tuple(sh.LogitsRow(i, 0, sh.KIND_SAMPLE) for i in range(len(settings))),
            token_writes=tuple(sh.TokenWrite(row, 0, (0,) * p) for row, p in zip(rows, positions, strict=True)),
            row_params=tuple(
                sh.RowParams(
                    row,
                    s.temperature,
                    s.top_p,
                    s.top_k,
                    s.seed,
                    s.sample_index,
                    num_logprobs,
                    -1,
                    tuple(s.logit_bias.items()),
                )
                for row, s in zip(rows, settings, strict=True)
            ),
        )
        self.executor.step(sh.encode_header(header))
        return self.executor.outputs()
