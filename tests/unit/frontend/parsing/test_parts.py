"""TorchServe's requests, read from its socket with a bound on the parts of each."""

from __future__ import annotations

import logging
import socket
import struct
import threading
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from ts.protocol import otf_message_handler as torchserve

from ts_stateful.frontend.parsing.parts import BatchReader, bound_parts

MAX_PARTS = 3
_STOCK = {
    name: getattr(torchserve, name) for name in ("_retrieve_buffer", "_retrieve_inference_msg")
}
_END = struct.pack("!i", -1)
_PARTS = st.lists(st.tuples(st.text(max_size=9), st.binary(max_size=9)), max_size=12)


def field(value: bytes) -> bytes:
    """Make a field of a message."""
    return struct.pack("!i", len(value)) + value


def request(parts: Sequence[tuple[str, bytes]], headers: Mapping[str, str] = {}) -> bytes:
    """Make a request as TorchServe's frontend sends it."""
    named = [field(name.encode()) + field(value.encode()) for name, value in headers.items()]
    sent = [field(name.encode()) + field(b"image/x") + field(value) for name, value in parts]
    return b"".join((field(b"id"), *named, _END, *sent, _END))


def read(*requests: bytes) -> list[dict[str, Any]]:
    """Read a batch of requests, which must be read to its end, and another batch."""
    frontend, worker = socket.socketpair()
    with frontend, worker:
        message = b"".join((*requests, _END, request([]), _END))
        sender = threading.Thread(target=frontend.sendall, args=(message,))
        sender.start()
        reader = BatchReader(MAX_PARTS)
        batch = reader.read_batch(worker)
        assert reader.read_batch(worker) == [{"requestId": b"id", "headers": [], "parameters": []}]
        sender.join()
    return batch


@pytest.fixture
def stock() -> Iterator[None]:
    """Restore TorchServe's own functions after a test."""
    yield
    for name, function in _STOCK.items():
        setattr(torchserve, name, function)


@pytest.mark.parametrize("count", range(MAX_PARTS + 1))
def test_an_ordinary_request_is_read_as_torchserve_reads_it(count: int) -> None:
    """With all parts and headers."""
    parts = [(f"part {number}", bytes(number)) for number in range(count)]
    assert read(request(parts, {"Host": "x", "a": ""})) == [
        {
            "requestId": b"id",
            "headers": [{"name": b"Host", "value": b"x"}, {"name": b"a", "value": b""}],
            "parameters": [
                {"name": name, "contentType": "image/x", "value": value} for name, value in parts
            ],
        }
    ]


@given(st.lists(_PARTS, max_size=5))
def test_no_request_is_lost_after_one_with_too_many_parts(batch: list[Any]) -> None:
    """It has one more than the limit, under different names, and the next ones are complete."""
    found = read(*map(request, batch))
    assert len(found) == len(batch)
    for parts, one in zip(batch, found, strict=True):
        if len(parts) <= MAX_PARTS:
            assert [each["value"] for each in one["parameters"]] == [value for _, value in parts]
            names = [each["name"] for each in one["parameters"]]
            assert all(map(str.startswith, names, (name for name, _ in parts)))
            # Also of files that have the same one: TorchServe would keep the last.
            assert len({*names}) == len(names)
        else:
            assert len({each["name"] for each in one["parameters"]}) == MAX_PARTS + 1


@pytest.mark.parametrize("size", [0, 1, 1000, 300_000])
def test_parts_of_any_size_are_skipped(size: int) -> None:
    """Also those that no window holds, and many of the same name."""
    parts = [("a", bytes(size))] * max(10, 10_000 // (size + 1)) + [("a" * size, b"b")]
    one, two = read(request(parts), request([("data", b"{}")]))
    assert len(one["parameters"]) == MAX_PARTS + 1
    assert not any(each["value"] for each in one["parameters"])
    assert two["parameters"][0]["value"] == b"{}"


def test_a_disconnected_frontend_ends_the_worker() -> None:
    """In the middle of the parts that are skipped, as anywhere else."""
    frontend, worker = socket.socketpair()
    with worker:
        with frontend:
            frontend.sendall(request([("a", b"1")] * 9)[:-6])
        with pytest.raises(SystemExit):
            BatchReader(MAX_PARTS).read_batch(worker)


@pytest.mark.usefixtures("stock")
def test_a_worker_reads_its_batches_so() -> None:
    """TorchServe's functions call these, one batch after the other."""
    bound_parts(MAX_PARTS)
    batches = [request([("a", b"1")] * 9), request([("data", b"{}")]), b""]
    frontend, worker = socket.socketpair()
    with frontend, worker:
        frontend.sendall(b"".join(b"I" + batch + _END for batch in batches))
        found = [torchserve.retrieve_msg(worker) for _ in batches]
        assert [command for command, _ in found] == [b"I"] * 3
        assert len(found[0][1][0]["parameters"]) == MAX_PARTS + 1
        assert found[1][1][0]["parameters"][0]["value"] == b"{}"
        assert found[2][1] == []
        frontend.close()
        with pytest.raises(SystemExit):
            torchserve.retrieve_msg(worker)


@pytest.mark.usefixtures("stock")
def test_reading_leaves_no_line_in_the_log(caplog: pytest.LogCaptureFixture) -> None:
    """TorchServe's worker writes one for each batch, a hundred a second; others stay."""
    bound_parts(MAX_PARTS)
    frontend, worker = socket.socketpair()
    with frontend, worker, caplog.at_level(logging.INFO):
        frontend.sendall(b"I" + _END)
        torchserve.retrieve_msg(worker)
        logging.info("another")
    assert caplog.messages == ["another"]
