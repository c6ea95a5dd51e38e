"""gRPC calls of TorchServe: their requests, their messages with a deadline for each, and their errors."""

from __future__ import annotations

import queue
import threading
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import grpc

from ts_stateful.client.documents import MAX_BODY_BYTES, check_size, encode, is_last
from ts_stateful.client.errors import (
    ClientError,
    DeadlineExceeded,
    RequestTooLarge,
    ServerRefused,
    ServerUnreachable,
    StreamStalled,
    unreachable,
)
from ts_stateful.client.transports.transport import Events, TransportOptions
from ts_stateful.pb.inference_pb2 import PredictionsRequest
from ts_stateful.protocol.requests import Command

__all__ = [
    "GOODBYE_S",
    "GrpcCall",
    "Inbox",
    "Outgoing",
    "RequestBuilder",
    "error_of",
    "messages",
    "read",
]

Inbox = queue.SimpleQueue["bytes | ClientError | None"]
"""Messages, at most one error, and None at the end of a call that has ended well."""

Outgoing = queue.SimpleQueue["PredictionsRequest | None"]
"""The requests of a call; None half-closes it."""

GOODBYE_S = 2.0  # for the server to end a call after its last event
_LARGE_BYTES = 1_000_000  # from here on RESOURCE_EXHAUSTED is about the size of the request
_BROKEN = (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.CANCELLED, grpc.StatusCode.ABORTED)
# TorchServe reports nearly everything as INTERNAL, with the Java class after the message.
_STATUS_OF_KIND = {
    "BadRequestException": 400,
    "ModelNotFoundException": 404,
    "ModelVersionNotFoundException": 404,
    "ServiceUnavailableException": 503,
}
_STATUS_OF_CODE = {
    grpc.StatusCode.INVALID_ARGUMENT: 400,
    grpc.StatusCode.UNAUTHENTICATED: 401,
    grpc.StatusCode.PERMISSION_DENIED: 403,
    grpc.StatusCode.NOT_FOUND: 404,
    grpc.StatusCode.RESOURCE_EXHAUSTED: 429,
}


class RequestBuilder:
    """The requests to one model and their metadata.

    A call about a session has its id in the metadata too, as `session_header`: a proxy reads no messages.
    """

    def __init__(self, options: TransportOptions) -> None:
        self._model = options.model
        self._max_body_bytes = options.max_body_bytes
        self._session_header = options.session_header.lower()
        self._metadata = tuple((name.lower(), value) for name, value in options.headers.items())
        # TorchServe passes no metadata on to the model, so a token goes in the message as well.
        self._inputs = {
            name: value.encode() for name, value in self._metadata if name == "authorization"
        }

    def request(
        self,
        command: Command,
        others: Mapping[str, bytes] | None = None,
        sequence_id: str | None = None,
    ) -> PredictionsRequest:
        """Build a request; `others` are inputs beside the document.

        Raises:
            RequestTooLarge: the server would not take it.
        """
        request = PredictionsRequest(
            model_name=self._model,
            input={"data": encode(command), **self._inputs, **(others or {})},
            sequence_id=sequence_id,
        )
        check_size(request.ByteSize(), self._max_body_bytes)
        return request

    def metadata(self, session_id: str | None) -> tuple[tuple[str, str], ...]:
        """Return the metadata of a call."""
        return (
            (*self._metadata, (self._session_header, session_id)) if session_id else self._metadata
        )


@dataclass(frozen=True)
class GrpcCall:
    """A streaming call in progress; `num_bytes` is the size of its request."""

    responses: Any  # an iterator of PredictionResponse that can be cancelled
    num_bytes: int = 0
    requests: Outgoing = field(default_factory=queue.SimpleQueue)

    def half_close(self) -> None:
        """End the client's side of the call."""
        self.requests.put(None)


def messages(call: GrpcCall, stall_s: float) -> Events:
    """Yield the messages of a call. A thread of its own reads them because gRPC has no wait with a timeout."""
    inbox: Inbox = queue.SimpleQueue()
    reader = threading.Thread(target=read, args=(call, inbox), daemon=True, name="grpc-reader")
    reader.start()
    complete = False
    try:
        while True:
            try:
                message = inbox.get(timeout=stall_s)
            except queue.Empty:
                raise StreamStalled(f"no event for {stall_s:g} s") from None
            if message is None:
                return
            if isinstance(message, ClientError):
                raise message
            complete = is_last(message)
            yield message
    finally:
        if complete:
            call.half_close()
            reader.join(GOODBYE_S)
        call.responses.cancel()  # of no effect on a call that has ended
        call.half_close()


def read(call: GrpcCall, inbox: Inbox) -> None:
    """Put the messages of a call into `inbox`, and its end."""
    try:
        for response in call.responses:
            # A document describes an error better than the status beside it. A message with neither keeps the stream alive.
            if response.prediction:
                inbox.put(bytes(response.prediction))
            elif response.status.code:
                status = response.status  # most often TorchServe has no free sequence
                message = f"{status.message or 'no message'} (status code {status.code})"
                inbox.put(ServerRefused(message, status=503))
    except grpc.RpcError as error:
        inbox.put(error_of(error, call.num_bytes))
    else:
        inbox.put(None)


def error_of(error: grpc.RpcError, num_bytes: int) -> ClientError:
    """Convert the error of a failed call; `num_bytes` is the size of its request."""
    code, details = error.code(), str(error.details() or "")[:500]
    if code is grpc.StatusCode.DEADLINE_EXCEEDED:
        return DeadlineExceeded("no answer within the deadline (timeout_s)")
    if code in _BROKEN:
        return unreachable(details or code.name)
    reset = code is grpc.StatusCode.INTERNAL and "RST_STREAM" in details
    exhausted = code is grpc.StatusCode.RESOURCE_EXHAUSTED
    if (reset and num_bytes > MAX_BODY_BYTES) or (exhausted and num_bytes > _LARGE_BYTES):
        return RequestTooLarge(
            f"the server does not take a request of {num_bytes:,} bytes; raise `max_request_size`"
            " in its config.properties, or send less"
        )
    # A proxy that loses the server in the middle of an answer ends it without a status.
    removed = code is grpc.StatusCode.UNKNOWN and details.startswith("Stream removed")
    if reset or removed:
        return ServerUnreachable(details)
    message, _, kind = details.rpartition("\n")
    kind = kind.rpartition(".")[2] if message else ""
    status = _STATUS_OF_KIND.get(kind, _STATUS_OF_CODE.get(code, 500))
    return ServerRefused(
        f"{message or details or 'no message'} ({code.name})", status=status, kind=kind or None
    )
