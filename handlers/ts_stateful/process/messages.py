"""Messages between worker and engine over their Unix socket: a length, then a msgpack document.

Both ends belong to one user, so both trust the form. `protocol` has validated what clients sent.
"""

from __future__ import annotations

import struct
from typing import Any

import msgspec
from msgspec import Struct

from ts_stateful.process.blocks import BlockReader, ConnectionEnded
from ts_stateful.protocol.events import Event, Submit
from ts_stateful.protocol.operations import Operation, Outcome
from ts_stateful.protocol.stats import Stats

__all__ = [
    "MAX_MESSAGE_BYTES",
    "AdminAnswer",
    "AdminRequest",
    "Draining",
    "Drop",
    "EngineHello",
    "MessageTooLong",
    "Ping",
    "Pong",
    "WorkerHello",
    "frame",
    "receive",
]


class WorkerHello(Struct, frozen=True, tag="attach"):
    """Worker to engine, first on every connection: the folder of the worker's archive."""

    archive: str


class Drop(Struct, frozen=True, tag="drop"):
    """Worker to engine: the client of this request has disconnected; send no more events for it."""

    request_id: str


class Ping(Struct, frozen=True, tag="ping"):
    """Worker to engine. The engine's step loop itself answers, so a `Pong` proves that it makes progress."""


class EngineHello(Struct, frozen=True, tag="attached"):
    """Engine to worker, first on every connection: its process, its sessions and its stats."""

    engine_pid: int
    session_ids: tuple[str, ...] = ()
    stats: Stats = Stats()


class Draining(Struct, frozen=True, tag="leaving"):
    """Engine to worker: the engine finishes its requests, takes no new ones, and exits.

    Without a `successor`, the server is about to stop.
    """

    successor: bool


class AdminRequest(Struct, frozen=True, tag="administer"):
    """Worker to engine: an operation that an operator asks for."""

    request_id: str
    operation: Operation


class AdminAnswer(Struct, frozen=True, tag="administered"):
    """Engine to worker: the answer to `AdminRequest`."""

    request_id: str
    outcome: Outcome


class Pong(Struct, frozen=True, tag="pong"):
    """Engine to worker: the answer to `Ping`."""

    stats: Stats


ToEngine = WorkerHello | Submit | Drop | Ping | AdminRequest
ToWorker = EngineHello | Event | Draining | Pong | AdminAnswer

_encoder = msgspec.msgpack.Encoder()
_to_engine = msgspec.msgpack.Decoder(ToEngine)
_to_worker = msgspec.msgpack.Decoder(ToWorker)
_LENGTH = struct.Struct("!I")
MAX_MESSAGE_BYTES = 1 << 28  # eight bodies of TorchServe's `max_request_size` in config.properties


class MessageTooLong(OSError):
    """A message is longer than `MAX_MESSAGE_BYTES`."""

    def __init__(self, num_bytes: int) -> None:
        super().__init__(
            f"a message of {num_bytes} bytes, but at most {MAX_MESSAGE_BYTES} can be sent"
        )


def frame(message: ToEngine | ToWorker) -> bytes:
    """Return a message as it is sent.

    Raises:
        MessageTooLong: it is longer than `MAX_MESSAGE_BYTES`.
    """
    payload = _encoder.encode(message)
    if len(payload) > MAX_MESSAGE_BYTES:
        raise MessageTooLong(len(payload))
    return _LENGTH.pack(len(payload)) + payload


def receive(blocks: BlockReader, *, at_engine: bool) -> Any | None:
    """Read the next message; return None if the other side has closed the connection.

    `at_engine` is True on the engine's side. Raises OSError if the connection breaks.

    Raises:
        MessageTooLong: the other side announces more bytes; none of them is allocated.
    """
    try:
        (num_bytes,) = _LENGTH.unpack(blocks.take(_LENGTH.size))
        if num_bytes > MAX_MESSAGE_BYTES:
            raise MessageTooLong(num_bytes)
        payload = blocks.take(num_bytes)
    except ConnectionEnded:
        return None
    return (_to_engine if at_engine else _to_worker).decode(payload)
