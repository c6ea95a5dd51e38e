"""Attacks on TorchServe's two inference ports: bytes on a connection, and calls over gRPC.

Attacks are data, so that a program of them can be kept in a file and run again. Each character of a text is a byte.
"""

from __future__ import annotations

import contextlib
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Literal, NamedTuple

import grpc
from msgspec import Struct

from ts_stateful.pb.inference_pb2 import PredictionsRequest

__all__ = ["Attack", "Body", "Bytes", "Call", "Message", "Ports"]

_SERVICE = "/org.pytorch.serve.grpc.inference.InferenceAPIsService/"
_CONNECT_S = 5.0
_ANSWER_S = 2.0  # an attacker waits no longer for an answer
_WRITE_S = 30.0  # nor until its bytes are taken
_RESET = struct.pack("ii", 1, 0)  # of SO_LINGER: close by a reset


class Ports(NamedTuple):
    """The addresses of a server's inference API: host and port."""

    http: tuple[str, int]
    grpc: tuple[str, int]


class Body(Struct, frozen=True, omit_defaults=True):
    """Bytes: `head`, then `unit` so many `times`, then `tail`."""

    head: str = ""
    unit: str = ""
    times: int = 0
    tail: str = ""

    @property
    def num_bytes(self) -> int:
        """The number of bytes."""
        return len(self.head) + len(self.unit) * self.times + len(self.tail)

    def encode(self) -> bytes:
        """Return the bytes."""
        return f"{self.head}{self.unit * self.times}{self.tail}".encode("latin-1")


class Bytes(Struct, frozen=True, omit_defaults=True, tag="bytes"):
    """Bytes to a port, on `copies` connections at the same time.

    A `share` of them is written, in some `pieces` with pauses. A connection that is left stays open until the program ends.
    """

    data: tuple[Body, ...]
    port: Literal["http", "grpc"] = "http"
    copies: int = 1
    share: float = 1.0
    pieces: int = 1
    pause_ms: int = 0
    ending: Literal["read", "half-close", "abort", "leave"] = "read"

    @property
    def num_bytes(self) -> int:
        """The bytes of all copies."""
        return self.copies * sum(body.num_bytes for body in self.data)

    def run(self, ports: Ports, left: list[socket.socket]) -> None:
        """Attack; connections that stay open go to `left`."""
        data = b"".join(body.encode() for body in self.data)
        data = data[: int(self.share * len(data))]
        address = ports.http if self.port == "http" else ports.grpc
        _at_once(self.copies, lambda: self._send(address, data, left))

    def _send(self, address: tuple[str, int], data: bytes, left: list[socket.socket]) -> None:
        connection = socket.create_connection(address, _CONNECT_S)
        if self.ending == "leave":
            left.append(connection)
        connection.settimeout(_WRITE_S)
        size = max(1, -(-len(data) // self.pieces))
        with contextlib.suppress(OSError):
            for start in range(0, len(data), size):
                connection.sendall(data[start : start + size])
                time.sleep(self.pause_ms / 1000)  # this makes a writer slow
            self._end(connection)
        if self.ending != "leave":
            connection.close()

    def _end(self, connection: socket.socket) -> None:
        if self.ending == "abort":
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
        elif self.ending == "half-close":
            connection.shutdown(socket.SHUT_WR)
        if self.ending in ("read", "half-close"):
            connection.settimeout(_ANSWER_S)
            connection.recv(1 << 16)


class Message(Struct, frozen=True, omit_defaults=True):
    """A message of gRPC: a request for a prediction, or bytes that are none."""

    inputs: Mapping[str, Body] = {}
    sequence_id: str | None = None
    model: str = "chat"
    raw: Body | None = None

    def encode(self) -> bytes:
        """Return the bytes."""
        if self.raw is not None:
            return self.raw.encode()
        request = PredictionsRequest(
            model_name=self.model,
            input={name: body.encode() for name, body in self.inputs.items()},
            sequence_id=self.sequence_id,
        )
        return bytes(request.SerializeToString())


class Call(Struct, frozen=True, omit_defaults=True, tag="call"):
    """Calls of a method over gRPC, `copies` at the same time, that end in one of the ways that a client has.

    The client half-closes after a pause, and cancels after two; a call that it leaves ends by its deadline.
    """

    method: str
    messages: tuple[Message, ...] = ()
    ending: Literal["half-close", "cancel", "half-close and cancel", "leave"] = "half-close"
    pause_ms: int = 0
    copies: int = 1

    @property
    def num_bytes(self) -> int:
        """The bytes of all copies' inputs."""
        inputs = [body for message in self.messages for body in message.inputs.values()]
        return self.copies * sum(body.num_bytes for body in inputs)

    def run(self, ports: Ports, _left: list[socket.socket]) -> None:
        """Attack."""
        host, port = ports.grpc
        options = [("grpc.max_send_message_length", -1), ("grpc.use_local_subchannel_pool", 1)]
        with grpc.insecure_channel(f"{host}:{port}", options) as channel:
            _at_once(self.copies, lambda: self._call(channel))

    def _call(self, channel: grpc.Channel) -> None:
        call = channel.stream_stream(
            _SERVICE + self.method, request_serializer=bytes, response_deserializer=bytes
        )
        over = threading.Event()
        responses = call(self._requests(over), timeout=_ANSWER_S)
        with contextlib.suppress(grpc.RpcError):
            if self.ending.endswith("cancel"):
                time.sleep(2 * self.pause_ms / 1000)
                responses.cancel()
            for _ in responses:
                pass
        over.set()

    def _requests(self, over: threading.Event) -> Iterator[bytes]:
        """Generate the messages; the end of the generator is the half-close."""
        for message in self.messages:
            yield message.encode()
        time.sleep(self.pause_ms / 1000)
        if not self.ending.startswith("half-close"):
            over.wait(_WRITE_S)


Attack = Bytes | Call


def _at_once(copies: int, act: Callable[[], None]) -> None:
    """Act so many times at the same time; a connection that the server refuses is no matter."""
    with ThreadPoolExecutor(copies) as pool:
        for done in [pool.submit(act) for _ in range(copies)]:
            with contextlib.suppress(OSError, grpc.RpcError):
                done.result()
