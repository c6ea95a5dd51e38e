"""A connection between a worker and an engine."""

from __future__ import annotations

import socket
import threading
from typing import Any

from tests.support.worker import WAIT_S
from ts_stateful.process.channel import Channel
from ts_stateful.protocol.events import Submit
from ts_stateful.protocol.requests import Open


class Owner:
    """An owner that waits for the end of its connection."""

    def __init__(self) -> None:
        self.closed = threading.Event()

    def on_message(self, channel: Channel, message: Any) -> None:
        """Ignore a message."""

    def on_close(self, channel: Channel) -> None:
        """Note the end."""
        self.closed.set()


def test_a_connection_that_cannot_send_is_closed() -> None:
    """Both sides are notified. Otherwise they would wait forever for an answer to what was not sent."""
    sender, receiver = socket.socketpair()
    owners = Owner(), Owner()
    channel = Channel(sender, owners[0], at_engine=False)
    channel.start()
    Channel(receiver, owners[1], at_engine=True).start()
    channel.send(Submit("r", Open(session_id="s", metadata={"n": 2**64})))
    assert all(owner.closed.wait(WAIT_S) for owner in owners)
