from collections.abc import Callable
from pathlib import Path

import pytest

from headrace import _native
from headrace.core.errors import ConfigError
from headrace.kernels.roofline import Machine, Roofline
from headrace.runner.kernel_shares import Scenario, kernel_shares

PEAKS = ("int8_gops", "q4_ceiling_gops", "bf16_gflops", "f32_gflops")


def limits(**values: float) -> Roofline:
    peaks = dict.fromkeys(PEAKS, 1e3) | values
    machine = Machine("any", _native.available_isas()[0], 1)
    return Roofline(machine, 10.0, **peaks, read={1 << 20: {1: 10.0}}, one_thread={})


def test_every_kernel_gets_its_bytes_operations_and_share(tiny_gguf: Callable[..., Path]) -> None:
    scenarios = (Scenario("decode", 2, 4, 1), Scenario("prefill", 1, 0, 16))
    shares = {(s.scenario, s.kernel): s for s in kernel_shares(tiny_gguf("llama", "Q4_1"), limits(), scenarios)}
    decode, prefill = shares["decode", "linear q4"], shares["prefill", "linear q4"]
    assert decode.num_bytes == prefill.num_bytes > 0
    assert prefill.num_ops > decode.num_ops > 0
    for share in shares.values():
        assert share.seconds > 0
        assert (share.bound == "") == (share.limit_s == 0)
        assert share.share == pytest.approx(share.limit_s / share.seconds)
    # Keys and values of four tokens and the new one, for both rows.
    attention = shares["decode", "attention"]
    assert attention.num_bytes % (2 * 5) == 0
    assert shares["decode", "everything else"].bound == ""


def test_the_tighter_limit_binds(tiny_gguf: Callable[..., Path]) -> None:
    scenario = (Scenario("prefill", 1, 0, 16),)
    for peak, bound in ((1e9, "memory"), (1e-3, "arithmetic")):
        shares = kernel_shares(tiny_gguf("llama", "Q4_1"), limits(q4_ceiling_gops=peak), scenario)
        assert next(s.bound for s in shares if s.kernel == "linear q4") == bound


def test_what_exceeds_the_context_is_left_out(tiny_gguf: Callable[..., Path]) -> None:
    model = tiny_gguf("llama", "Q4_1")
    fits, too_long = Scenario("fits", 1, 0, 4), Scenario("too long", 1, 0, 1 << 24)
    assert {s.scenario for s in kernel_shares(model, limits(), (fits, too_long))} == {"fits"}
    with pytest.raises(ConfigError, match="too few"):
        kernel_shares(model, limits(), (too_long,))
