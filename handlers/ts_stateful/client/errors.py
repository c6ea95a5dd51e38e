"""What can go wrong between a client and a server, besides the errors that the server's protocol has.

Owns the classes for transport and protocol failures. Errors that a server answers are in `ts_stateful.protocol.errors`.

    ClientError
    ├── ServerUnreachable      no connection, or it broke                      (retryable)
    │   └── StreamStalled      connected, but silent for longer than allowed   (retryable)
    ├── ConnectionClosed       by the caller
    ├── DeadlineExceeded       no answer within the deadline
    ├── RequestTooLarge        more bytes than the server's transport takes; nothing was sent
    ├── ServerRefused          TorchServe itself or a proxy answered           (retryable if overloaded or "worker died")
    └── ProtocolError          an answer that is not of this protocol
"""

from __future__ import annotations

from ts_stateful.protocol.errors import StatefulError

__all__ = [
    "ClientError",
    "ConnectionClosed",
    "DeadlineExceeded",
    "ProtocolError",
    "RequestTooLarge",
    "ServerRefused",
    "ServerUnreachable",
    "StreamStalled",
    "is_retryable",
]


class ClientError(Exception):
    """Base of the errors that no answer of the session protocol carries."""

    retryable = False

    def __init__(self, message: str) -> None:
        super().__init__(message)
        self.message = message


class ServerUnreachable(ClientError):
    """The connection could not be made, or it broke."""

    retryable = True


class StreamStalled(ServerUnreachable):
    """The connection stands, but nothing has come for longer than the stall time."""


class ConnectionClosed(ClientError):
    """The caller has closed the connection: before the call, or while it was waiting for an answer."""


class DeadlineExceeded(ClientError):
    """The deadline passed; the turn may still be running on the server."""


class RequestTooLarge(ClientError):
    """The request has more bytes than TorchServe's `max_request_size` takes."""


class ServerRefused(ClientError):
    """An error that comes from TorchServe itself or from a proxy, not from the model's sessions.

    `status` is the HTTP status, or the one that matches what gRPC said; `kind` is the name that TorchServe gives the
    error, such as `ModelNotFoundException`, where it gives one.
    """

    def __init__(self, message: str, *, status: int, kind: str | None = None) -> None:
        super().__init__(message)
        self.status = status
        self.kind = kind
        # TorchServe's own words for a worker that it starts again: the sessions outlive it.
        self.retryable = status in (429, 502, 503, 504) or "Worker died" in message

    @property
    def is_without_model(self) -> bool:
        """Whether TorchServe has no such model; while one is unregistered it has the model, and no version of it."""
        return self.kind in ("ModelNotFoundException", "ModelVersionNotFoundException")


class ProtocolError(ClientError):
    """The answer is not one that the protocol has; the server is another one, or a newer one."""


def is_retryable(error: Exception) -> bool:
    """Whether the same request may succeed if it is sent again after a while."""
    return isinstance(error, ClientError | StatefulError) and error.retryable
