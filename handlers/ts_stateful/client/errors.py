"""Errors between a client and a server. The server's own errors are in `ts_stateful.protocol.errors`.

ClientError
├── ServerUnreachable      no connection, or it broke                      (retryable)
│   └── StreamStalled      connected, but silent for longer than allowed   (retryable)
├── ConnectionClosed       by the caller, or by a fork of its process
├── DeadlineExceeded       no answer within the deadline
├── RequestTooLarge        more bytes than the server's transport takes; nothing was sent
├── ServerRefused          TorchServe itself or a proxy answered           (retryable if overloaded or "worker died")
└── ProtocolError          an answer that is not of this protocol
"""

from __future__ import annotations

__all__ = [
    "ClientError",
    "ConnectionClosed",
    "DeadlineExceeded",
    "ProtocolError",
    "RequestTooLarge",
    "ServerRefused",
    "ServerUnreachable",
    "StreamStalled",
    "unreachable",
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
    """The caller closed the connection before the call or during it, or used it before a fork of the process."""


class DeadlineExceeded(ClientError):
    """The deadline passed; the turn may still be running on the server."""


class RequestTooLarge(ClientError):
    """The request has more bytes than TorchServe's `max_request_size` takes."""


class ServerRefused(ClientError):
    """An error from TorchServe itself or from a proxy, not from the model's sessions.

    `status` is the HTTP status, or the one that matches gRPC's. `kind` is TorchServe's name of the error, such as
    `ModelNotFoundException`, if it has one. `retry_after_s` is the time to wait before a retry, where it is known.
    """

    retry_after_s: float | None = None

    # A default for the status, since pickle passes the message alone.
    def __init__(self, message: str, *, status: int = 500, kind: str | None = None) -> None:
        super().__init__(message)
        self.status = status
        self.kind = kind
        # TorchServe reports so a worker that it starts again; the sessions outlive it.
        self.retryable = status in (429, 502, 503, 504) or "Worker died" in message

    @property
    def is_without_model(self) -> bool:
        """Return True if TorchServe has no such model, or has it without a version while it is unregistered."""
        return self.kind in ("ModelNotFoundException", "ModelVersionNotFoundException")


class ProtocolError(ClientError):
    """The answer is not of this protocol; another program answered, or a newer server."""


def unreachable(reason: str) -> ServerUnreachable:
    """Return the error of a connection; it is final if the server's certificate is not trusted."""
    if "CERTIFICATE_VERIFY_FAILED" not in reason:
        return ServerUnreachable(reason)
    error = ServerUnreachable(f"name the certificates to trust in `ca_file`: {reason}")
    error.retryable = False
    return error
