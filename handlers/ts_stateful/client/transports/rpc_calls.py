"""Reading a gRPC call of TorchServe: its messages with a deadline for each, and what its failures mean.

Owns the thread that reads, and the translation of TorchServe's and gRPC's errors. Knows nothing of which call is made.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable
from typing import Any, NamedTuple

import grpc

from ts_stateful.client.documents import MAX_BODY_BYTES, is_last
from ts_stateful.client.errors import (
    ClientError,
    DeadlineExceeded,
    RequestTooLarge,
    ServerRefused,
    ServerUnreachable,
    StreamStalled,
)
from ts_stateful.client.transports.transport import Events
from ts_stateful.pb.inference_pb2 import PredictionResponse

__all__ = ["GOODBYE_S", "Call", "Inbox", "error_of", "messages", "read"]

Inbox = queue.SimpleQueue["bytes | ClientError | None"]
"""Messages, at most one error, and None at the end of a call that has ended well."""

GOODBYE_S = 2.0  # for the server to end a call after its last event
_LARGE_BYTES = 1_000_000  # a refusal for lack of resources is about the request itself from here on
_BROKEN = (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.CANCELLED, grpc.StatusCode.ABORTED)
# TorchServe reports nearly everything as INTERNAL and puts the Java class behind the message.
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


class Call(NamedTuple):
    """A streaming call in progress; `half_close` ends the client's side of it."""

    responses: Any  # an iterator of PredictionResponse that can be cancelled
    half_close: Callable[[], None]
    num_bytes: int  # of the request


def messages(call: Call, stall_s: float) -> Events:
    """The messages of a call, read by a thread of its own because gRPC has no wait with a timeout."""
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


def read(call: Call, inbox: Inbox) -> None:
    try:
        for response in call.responses:
            if response.status.code:
                inbox.put(_refusal_of(response))
            elif response.prediction:  # an empty one keeps the stream alive and says nothing
                inbox.put(bytes(response.prediction))
    except grpc.RpcError as error:
        inbox.put(error_of(error, call.num_bytes))
    else:
        inbox.put(None)


def _refusal_of(response: PredictionResponse) -> ServerRefused:
    """What TorchServe says in a message of `StreamPredictions2`: it has no free sequence, most often."""
    message = f"{response.status.message or 'no message'} (status code {response.status.code})"
    return ServerRefused(message, status=503)


def error_of(error: grpc.RpcError, num_bytes: int) -> ClientError:
    """What a failed call means; `num_bytes` is the size of its request."""
    code, details = error.code(), str(error.details() or "")[:500]
    if code is grpc.StatusCode.DEADLINE_EXCEEDED:
        return DeadlineExceeded("no answer within the deadline")
    if code in _BROKEN:
        return ServerUnreachable(details or code.name)
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
