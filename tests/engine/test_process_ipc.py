"""Framing and messages: every cut of the stream gives the same messages; what is not the protocol is refused."""

from __future__ import annotations

import itertools

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.config.engine import EngineConfig
from headrace.core.errors import CapacityError, EngineDeadError, HeadraceError, InvalidRequestError
from headrace.core.outputs import TokenDelta, TokenLogprobs
from headrace.core.request import EngineRequest
from headrace.engine import ipc
from tests.engine.fake_engine import CountingCore, engine_info

TO_ENGINE: list[ipc.ToEngine] = [
    ipc.Configure(EngineConfig(model="some/folder", sources={"model": "flag"}), "debug"),
    ipc.Add(EngineRequest(request_id="ä-1", prompt_token_ids=[0, 1, 2**31 - 1], max_tokens=3, logit_bias={7: -1.5})),
    ipc.Abort("ä-1"),
    ipc.StatsQuery(1),
]
FROM_ENGINE: list[ipc.FromEngine] = [
    ipc.Ready(engine_info(EngineConfig())),
    ipc.Deltas([TokenDelta(request_id="a", token_ids=[5], logprobs=[TokenLogprobs(5, -0.5, 1, [(5, -0.5)])])]),
    ipc.Stats(3, CountingCore(EngineConfig()).stats()),
    ipc.Failure("CapacityError", "too big"),
]


@given(st.data())
def test_messages_survive_any_cut_of_the_stream(data: st.DataObject) -> None:
    stream = b"".join(map(ipc.encode_frame, TO_ENGINE))
    cuts = sorted(data.draw(st.sets(st.integers(0, len(stream)), max_size=12)) | {0, len(stream)})
    decoder = ipc.to_engine_decoder()
    messages = [m for a, b in itertools.pairwise(cuts) for m in decoder.push(stream[a:b])]
    assert messages == TO_ENGINE
    assert decoder.num_pending_bytes == 0


def test_the_engines_messages_survive_too() -> None:
    assert ipc.from_engine_decoder().push(b"".join(map(ipc.encode_frame, FROM_ENGINE))) == FROM_ENGINE


def test_the_configuration_arrives_with_its_sources() -> None:
    (message,) = ipc.to_engine_decoder().push(ipc.encode_frame(TO_ENGINE[0]))
    assert isinstance(message, ipc.Configure)
    assert message.config.source("model") == "flag"


@given(st.binary(min_size=4, max_size=200))
def test_random_bytes_never_do_anything_but_raise_protocol_error(data: bytes) -> None:
    decoder = ipc.to_engine_decoder()
    try:
        messages = decoder.push(data)
    except ipc.ProtocolError:
        return
    assert messages == []


@pytest.mark.parametrize(
    "body",
    [
        msgspec.msgpack.encode({"type": "unheard-of"}),
        msgspec.msgpack.encode({"type": "abort"}),
        msgspec.msgpack.encode({"type": "abort", "request_id": "a", "more": 1}),
        msgspec.msgpack.encode(
            {"type": "add", "request": {"request_id": "a", "prompt_token_ids": ["x"], "max_tokens": 1}}
        ),
        msgspec.msgpack.encode({"type": "configure", "config": {"block_size": 17}}),
        msgspec.msgpack.encode({"type": "ready", "info": {}}),
        b"\x91" * 100_000,
        b"\xc1",
    ],
)
def test_what_is_not_a_message_to_the_engine_is_refused(body: bytes) -> None:
    with pytest.raises(ipc.ProtocolError, match="not a message"):
        ipc.to_engine_decoder().push(len(body).to_bytes(4, "little") + body)


@pytest.mark.parametrize("num_bytes", [0, ipc.MAX_FRAME_BYTES + 1, 2**32 - 1])
def test_a_frame_of_impossible_length_is_refused_before_its_bytes_arrive(num_bytes: int) -> None:
    with pytest.raises(ipc.ProtocolError, match="frame"):
        ipc.to_engine_decoder().push(num_bytes.to_bytes(4, "little"))


def test_a_message_larger_than_a_frame_is_not_sent() -> None:
    with pytest.raises(ipc.ProtocolError, match="larger"):
        ipc.encode_frame(ipc.Abort("x" * (ipc.MAX_FRAME_BYTES + 1)))


def test_errors_keep_their_kind_words_and_parameter() -> None:
    error = ipc.error_from(ipc.failure_from(CapacityError("too big", param="max_model_len", code="c")))
    assert type(error) is CapacityError
    assert (error.message, error.param, error.code) == ("too big", "max_model_len", "c")
    assert type(ipc.error_from(ipc.failure_from(InvalidRequestError("no")))) is InvalidRequestError


@pytest.mark.parametrize("kind", ["ZeroDivisionError", "nearest", "__name__", "Iterable", ""])
def test_a_failure_of_no_kind_of_ours_is_a_dead_engine(kind: str) -> None:
    error = ipc.error_from(ipc.Failure(kind, "boom"))
    assert isinstance(error, HeadraceError)
    assert type(error) is EngineDeadError
    assert "boom" in str(error)
