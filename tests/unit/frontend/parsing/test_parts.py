"""TorchServe's requests, read from its socket with a bound on the parts of each."""

from __future__ import annotations

import socket
import struct
import threading
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from ts.protocol import otf_message_handler as torchserve

from ts_stateful.frontend.parsing.parts import bound_parts, read_request

MAX_PARTS = 3
_stock_reader = torchserve._retrieve_request
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


def read(message: bytes, max_parts: int = MAX_PARTS) -> list[dict[str, Any] | None]:
    """Read a batch of requests; the message must be read to its end."""
    frontend, worker = socket.socketpair()
    with frontend, worker:
        sender = threading.Thread(target=frontend.sendall, args=(message + _END + b"next",))
        sender.start()
        batch = [read_request(worker, max_parts)]
        while batch[-1] is not None:
            batch.append(read_request(worker, max_parts))
        assert torchserve._retrieve_buffer(worker, 4) == b"next"
        sender.join()
    return batch


@pytest.fixture
def stock() -> Iterator[None]:
    """Restore TorchServe's own reader after a test."""
    yield
    torchserve._retrieve_request = _stock_reader


@pytest.mark.parametrize("count", range(MAX_PARTS + 1))
def test_an_ordinary_request_is_read_as_torchserve_reads_it(count: int) -> None:
    """With all parts and headers."""
    parts = [(f"part {number}", bytes(number)) for number in range(count)]
    one, end = read(request(parts, {"Host": "x", "a": ""}))
    assert end is None
    assert one == {
        "requestId": b"id",
        "headers": [{"name": b"Host", "value": b"x"}, {"name": b"a", "value": b""}],
        "parameters": [
            {"name": name, "contentType": "image/x", "value": value} for name, value in parts
        ],
    }


@given(st.lists(_PARTS, max_size=5))
def test_no_request_is_lost_after_one_with_too_many_parts(batch: list[Any]) -> None:
    """It has one more than the limit, under different names, and the next ones are complete."""
    *found, end = read(b"".join(map(request, batch)))
    assert end is None
    assert len(found) == len(batch)
    for parts, one in zip(batch, found, strict=True):
        assert one is not None
        if len(parts) <= MAX_PARTS:
            assert [(each["name"], each["value"]) for each in one["parameters"]] == parts
        else:
            assert len({each["name"] for each in one["parameters"]}) == MAX_PARTS + 1


@pytest.mark.parametrize("size", [0, 1, 1000, 300_000])
def test_parts_of_any_size_are_skipped(size: int) -> None:
    """Also those that no window holds, and many of the same name."""
    parts = [("a", bytes(size))] * max(10, 10_000 // (size + 1)) + [("a" * size, b"b")]
    one, two, end = read(request(parts) + request([("data", b"{}")]))
    assert one is not None
    assert two is not None
    assert end is None
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
            read_request(worker, MAX_PARTS)


@pytest.mark.usefixtures("stock")
def test_a_worker_reads_its_batches_so() -> None:
    """TorchServe calls its own function for a batch, which calls this one."""
    bound_parts(MAX_PARTS)
    frontend, worker = socket.socketpair()
    with frontend, worker:
        frontend.sendall(b"I" + request([("a", b"1")] * 9) + _END)
        command, batch = torchserve.retrieve_msg(worker)
    assert command == b"I"
    assert len(batch[0]["parameters"]) == MAX_PARTS + 1
