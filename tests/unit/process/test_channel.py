"""A connection between a worker and an engine."""

from __future__ import annotations

import socket
import threading

from tests.support.worker import WAIT_S
from ts_stateful.process.channel import Channel
from ts_stateful.protocol.events import Submit
from ts_stateful.protocol.requests import Open


def test_a_connection_on_which_nothing_can_be_sent_any_more_is_closed() -> None:
    """Both sides hear of it: who waits for what was sent would wait for ever."""
    sides = []
    for connection, at_engine in zip(socket.socketpair(), (False, True), strict=True):
        closed = threading.Event()
        channel = Channel(
            connection, at_engine=at_engine, on_message=lambda _: None, on_close=closed.set
        )
        channel.start()
        sides.append((channel, closed))
    sides[0][0].send(Submit("r", Open(session_id="s", metadata={"n": 2**64})))
    assert all(closed.wait(WAIT_S) for _, closed in sides)
