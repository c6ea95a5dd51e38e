"""A connection between a worker and an engine."""

from __future__ import annotations

import logging
import queue
import socket
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from tests.support.worker import WAIT_S
from ts_stateful.process.blocks import BlockReader
from ts_stateful.process.channel import Channel
from ts_stateful.process.messages import MAX_MESSAGE_BYTES, MessageTooLong, Ping, frame, receive
from ts_stateful.protocol.events import Event, EventKind, Submit
from ts_stateful.protocol.requests import Open, Prompt


class Owner:
    """An owner that keeps messages, and waits for the end of its connection."""

    def __init__(self) -> None:
        self.closed = threading.Event()
        self.messages: queue.SimpleQueue[Any] = queue.SimpleQueue()

    def on_message(self, channel: Channel, message: Any) -> None:
        """Keep a message."""
        self.messages.put(message)

    def on_close(self, channel: Channel) -> None:
        """Note the end."""
        self.closed.set()


@pytest.mark.parametrize("together", [False, True])
def test_a_connection_that_cannot_send_is_closed(together: bool) -> None:
    """Both sides are notified. Otherwise they would wait forever for an answer to what was not sent."""
    sender, receiver = socket.socketpair()
    owners = Owner(), Owner()
    channel = Channel(sender, owners[0], at_engine=False)
    channel.start()
    Channel(receiver, owners[1], at_engine=True).start()
    message = Submit("r", Open(session_id="s", metadata={"n": 2**64}))
    channel.send_together([message]) if together else channel.send(message)
    assert all(owner.closed.wait(WAIT_S) for owner in owners)


class Pair:
    """A worker and an engine that are connected."""

    def __init__(self) -> None:
        worker, engine = socket.socketpair()
        self.at_worker, self.at_engine = Owner(), Owner()
        self.worker = Channel(worker, self.at_worker, at_engine=False)
        self.engine = Channel(engine, self.at_engine, at_engine=True)


@pytest.fixture
def pair() -> Iterator[Pair]:
    made = Pair()
    made.worker.start()
    made.engine.start()
    yield made
    made.worker.close()
    assert made.at_worker.closed.wait(WAIT_S)
    assert made.at_engine.closed.wait(WAIT_S)


@pytest.mark.parametrize("at_engine", [True, False])
def test_a_length_beyond_the_limit_closes_the_connection(
    at_engine: bool, caplog: pytest.LogCaptureFixture
) -> None:
    """Nothing is read or allocated for it, in both directions; the log names both lengths."""
    peer, connection = socket.socketpair()
    owner = Owner()
    with caplog.at_level(logging.ERROR), peer:
        Channel(connection, owner, at_engine=at_engine).start()
        peer.sendall((MAX_MESSAGE_BYTES + 1).to_bytes(4, "big"))
        assert owner.closed.wait(WAIT_S)
        assert peer.recv(1) == b""
    assert owner.messages.empty()
    assert f"{MAX_MESSAGE_BYTES + 1} bytes, but at most {MAX_MESSAGE_BYTES}" in caplog.text


def test_the_longest_message_is_received() -> None:
    """One byte more is refused."""
    prompt = Prompt(session_id="s", prompt="")
    rest = len(frame(Submit("r", prompt, attachments=(bytes(1 << 16),)))) - 4 - (1 << 16)
    # A longer attachment takes two more bytes for its length.
    longest = bytes(MAX_MESSAGE_BYTES - rest)
    left, right = socket.socketpair()
    with left, right:
        received: list[Any] = []
        blocks = BlockReader(right)
        reader = threading.Thread(target=lambda: received.append(receive(blocks, at_engine=True)))
        reader.start()
        left.sendall(frame(Submit("r", prompt, attachments=(longest,))))
        reader.join(WAIT_S)
        assert len(received[0].attachments[0]) == len(longest)
    with pytest.raises(MessageTooLong):
        frame(Submit("r", prompt, attachments=(longest + b"x",)))


@pytest.mark.parametrize("size", [0, 1, 1 << 12, 1 << 17])
def test_messages_arrive_in_their_order(pair: Pair, size: int) -> None:
    """Sent alone or together, also where the peer is slower than the sender."""
    names = [str(number) for number in range(500)]
    events = [Event(name, EventKind.PART, bytes(size)) for name in names]
    for start in range(0, len(names), 10):
        pair.engine.send(events[start])
        pair.engine.send_together(events[start + 1 : start + 9])
        pair.engine.send_together(events[start + 9 : start + 10])
    pair.engine.flush(WAIT_S)
    events = [pair.at_worker.messages.get(timeout=WAIT_S) for _ in names]
    assert [event.request_id for event in events] == names
    assert all(len(event.body) == size for event in events)


def test_what_waits_is_written_to_the_end(pair: Pair) -> None:
    """Short and long messages keep their order, and flushing waits for all of them."""
    sizes = [number % 7 * 5_000 for number in range(300)]
    for number, size in enumerate(sizes):
        pair.engine.send(Event(str(number), EventKind.PART, bytes(size)))
    pair.engine.flush(WAIT_S)
    found = [pair.at_worker.messages.get(timeout=WAIT_S) for _ in sizes]
    assert [(int(event.request_id), len(event.body)) for event in found] == list(enumerate(sizes))


def test_a_request_that_is_too_long_is_refused_alone(pair: Pair) -> None:
    """The worker's side answers for the engine, and later messages are sent."""
    attachments = (bytes(MAX_MESSAGE_BYTES),)
    pair.worker.send(Submit("r", Prompt(session_id="s", prompt=""), attachments=attachments))
    pair.worker.send(Ping())
    event = pair.at_worker.messages.get(timeout=WAIT_S)
    assert (event.request_id, event.kind, event.status) == ("r", EventKind.LAST, 400)
    assert str(MAX_MESSAGE_BYTES) in event.body.decode()
    assert isinstance(pair.at_engine.messages.get(timeout=WAIT_S), Ping)


def test_an_answer_that_is_too_long_becomes_an_error(pair: Pair) -> None:
    """Its request gets it, and later events are sent."""
    pair.engine.send(Event("r", EventKind.LAST, bytes(MAX_MESSAGE_BYTES)))
    pair.engine.send(Event("q", EventKind.LAST, b"{}"))
    events = [pair.at_worker.messages.get(timeout=WAIT_S) for _ in range(2)]
    assert [(event.request_id, event.status) for event in events] == [("r", 500), ("q", 200)]


@pytest.mark.parametrize("name", ["channel-read", "channel-write"])
def test_without_a_thread_the_connection_is_closed(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The owner gets an error at the start, or the end of the connection."""
    start = threading.Thread.start

    def refuse(thread: threading.Thread) -> None:
        if thread.name == name:
            raise RuntimeError("can't start new thread")
        start(thread)

    ours, theirs = socket.socketpair()
    owner = Owner()
    channel = Channel(ours, owner, at_engine=False)
    with theirs, monkeypatch.context() as full:
        full.setattr(threading.Thread, "start", refuse)
        if name == "channel-read":
            with pytest.raises(OSError, match="can't start new thread"):
                channel.start()
        else:
            channel.start()
            assert owner.closed.wait(WAIT_S)
        assert theirs.recv(1) == b""
    assert ours.fileno() == -1
