"""The bits of every kernel, recorded.

Within a tolerance an association, a tile or a constant could change unseen. A change here is a new numerics_id:
what was stored by earlier versions no longer compares.
"""

from __future__ import annotations

import hashlib

import numpy as np
import pytest

from headrace import _native

from .kernel_reference import FORMAT_OF_SOURCE, FORMATS, ISAS, SOURCES

BITS = {
    "linear q4_0": "4f5d09106d217d48",
    "linear q4_1": "f1c3f733f33eb777",
    "linear q8_0": "02a9ebd4519c7dd1",
    "linear f16": "e5d7f0d3c8ea18ba",
    "linear bf16": "b0e98c4f4d42954e",
    "linear f32": "4277d16222d9e8aa",
    "attention": "e835dd8369c99f57",
    "attention bf16": "c359309737e9e38e",
    "rotary": "3fd18785b8201e4d",
    "rms_norm": "08cdbe02731cb79a",
    "silu_mul": "381398b95a6a0973",
    "log_sum_exp": "71fa350a1dbed8dc",
    "gumbel": "d7157331e0e7acb5",
}


def integers(count: int, stream: int) -> np.ndarray:
    """uint32 [count], the same under every NumPy version."""
    x = np.arange(1, count + 1, dtype=np.uint32) * np.uint32(0x9E3779B9) + np.uint32(stream * 0x85EBCA6B % 2**32)
    for shift in (16, 15, 16):
        x = (x ^ x >> np.uint32(shift)) * np.uint32(0x21F0AAAD)
    return x


def floats(stream: int, *shape: int) -> np.ndarray:
    """f32 in [-2, 2), exact."""
    whole = integers(int(np.prod(shape)), stream).astype(np.int64) - 2**31
    return (whole // 256).astype(np.float32).reshape(shape) * np.float32(2.0**-22)


def packed_weight(source: str, n: int, k: int) -> np.ndarray:
    if source == "f32":
        raw = floats(1, n, k).view(np.uint8)
    elif source in ("f16", "bf16"):
        raw = (integers(n * k, 1) >> np.uint32(16) & np.uint32(0xBFFF)).astype(np.uint16).view(np.uint8)
    else:
        size = {"q4_0": 18, "q4_1": 20, "q8_0": 34}[source]
        blocks = (integers(n * k // 32 * size, 1) >> np.uint32(24)).astype(np.uint8).reshape(-1, size)
        blocks[:, 1] &= 0x3F
        if source == "q4_1":
            blocks[:, 3] &= 0xBF
        raw = blocks
    packed_format = FORMATS[FORMAT_OF_SOURCE[source]]
    packed = np.zeros(_native.packed_bytes(packed_format, n, k), np.uint8)
    raw = np.ascontiguousarray(raw)
    assert _native.pack(SOURCES[source], raw.ctypes.data, None, n, k, packed.ctypes.data)
    return packed


def linear(isa: str, source: str) -> np.ndarray:
    packed_format = FORMATS[FORMAT_OF_SOURCE[source]]
    weight, x = packed_weight(source, 64, 352), floats(2, 5, 352)
    norm, bias, residual = floats(3, 352), floats(4, 64), floats(5, 5, 64)
    plain = _native.op_linear(isa, packed_format, weight, x, 64, 8, norm, 1e-5, bias, residual)
    gated = _native.op_linear(isa, packed_format, weight, x, 64, 2, silu_mul=True)
    return np.concatenate([plain.ravel(), gated.ravel()])


def attention(isa: str, dtype: type = np.float32) -> np.ndarray:
    """600 keys: three splits, the last tile cut."""
    k, v, q = floats(6, 600, 40), floats(7, 600, 40), floats(8, 5, 40)
    strides = [16, 1280, 1280, 1280, 640]
    memory, table = np.zeros(38 * 1280, dtype), np.arange(38, dtype=np.int32)
    for t in range(600):
        _native.op_kv_store(isa, memory, strides, 0, 0, t // 16, t % 16, k[t], v[t])
    return _native.op_attention(isa, memory, strides, 0, 0, table, 599, q, 0.25)


def rotary(isa: str) -> np.ndarray:
    table = _native.rope_table(np.array([1.0, 0.31, 0.017]), 3000, 1.0)
    return np.concatenate([table.ravel(), _native.op_rope(isa, floats(9, 8), table[-1].ravel())])


CASES = {
    **{f"linear {source}": lambda isa, source=source: linear(isa, source) for source in SOURCES},
    "attention": attention,
    "attention bf16": lambda isa: attention(isa, np.uint16),
    "rotary": rotary,
    "rms_norm": lambda isa: _native.op_rms_norm(isa, floats(10, 1003), floats(11, 1003), 1e-6),
    "silu_mul": lambda isa: _native.op_silu_mul(isa, floats(12, 1003) * np.float32(40), floats(13, 1003)),
    "log_sum_exp": lambda isa: np.float32(_native.op_log_sum_exp(isa, floats(14, 5003) * np.float32(9))),
    "gumbel": lambda isa: _native.op_gumbel(isa, 2**63 + 11, 3, 2**31 + 5, None, 5003),
}


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("name", CASES)
def test_the_bits_of_a_kernel_are_those_on_record(name, isa):
    got = CASES[name](isa)
    assert np.isfinite(got).all()
    assert hashlib.sha256(got.tobytes()).hexdigest()[:16] == BITS[name]
