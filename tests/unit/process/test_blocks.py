"""The bytes of a connection, read in blocks."""

from __future__ import annotations

import socket
import threading

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ts_stateful.process.blocks import BlockReader, ConnectionEnded

_LENGTHS = st.lists(
    st.tuples(st.integers(0, 200_000) | st.integers(0, 9), st.booleans()), max_size=20
)


@given(_LENGTHS)
def test_bytes_come_in_their_order(lengths: list[tuple[int, bool]]) -> None:
    """Whatever was taken or skipped before, in any lengths; then the end."""
    sent = [bytes([number]) * length for number, (length, _) in enumerate(lengths)]
    left, right = socket.socketpair()
    with right:
        sender = threading.Thread(target=_send, args=(left, b"".join(sent)))
        sender.start()
        blocks = BlockReader(right)
        for data, (length, is_skipped) in zip(sent, lengths, strict=True):
            if is_skipped:
                blocks.skip(length)
            else:
                assert blocks.take(length) == data
        sender.join()
        with pytest.raises(ConnectionEnded):
            blocks.take(1)


@pytest.mark.parametrize("length", [2, 1 << 17])
def test_an_end_within_a_field_is_an_error(length: int) -> None:
    """Also while it is skipped."""
    for read in (BlockReader.take, BlockReader.skip):
        left, right = socket.socketpair()
        with right:
            _send(left, b"x")
            with pytest.raises(ConnectionEnded):
                read(BlockReader(right), length)


def _send(connection: socket.socket, data: bytes) -> None:
    with connection:
        connection.sendall(data)
