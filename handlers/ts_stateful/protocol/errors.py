"""All errors of the wire protocol, which server and client share.

StatefulError
├── InvalidRequest          invalid_request        400
│   └── SessionIdMismatch   session_id_mismatch    400
├── Unauthenticated         unauthenticated        401
├── ModelNotFound           model_not_found        404
├── RequestTimeout          request_timeout        408  (retryable)
├── MediaError
│   ├── MediaInvalid        media_invalid          400
│   ├── MediaForbidden      media_forbidden        403
│   └── MediaTooLarge       media_too_large        413
├── SessionError
│   ├── SessionNotFound     session_not_found      404
│   ├── SessionExpired      session_expired        410
│   ├── SessionClosed       session_closed         410
│   ├── SessionExists       session_exists         409
│   ├── SessionMoved        session_moved          409  (retryable)
│   └── TurnGap             turn_gap               409
├── ContextTooLong          context_too_long       413
├── Overloaded
│   ├── TooManySessions     too_many_sessions      429  (retryable)
│   ├── QueueFull           queue_full             429  (retryable)
│   ├── QuotaExceeded       quota_exceeded         429  (retryable)
│   └── ServerBusy          server_busy            503  (retryable)
├── InternalError           internal               500
├── KeysUnavailable         keys_unavailable       503  (retryable)
├── EngineUnavailable       engine_unavailable     503  (retryable)
├── StoreFailed             store_unavailable      503  (retryable)
└── OutOfMemory             out_of_memory          507  (retryable)
"""

from __future__ import annotations

from typing import Any, ClassVar

__all__ = [
    "ContextTooLong",
    "EngineUnavailable",
    "InternalError",
    "InvalidRequest",
    "KeysUnavailable",
    "MediaError",
    "MediaForbidden",
    "MediaInvalid",
    "MediaTooLarge",
    "ModelNotFound",
    "OutOfMemory",
    "Overloaded",
    "QueueFull",
    "QuotaExceeded",
    "RequestTimeout",
    "ServerBusy",
    "SessionClosed",
    "SessionError",
    "SessionExists",
    "SessionExpired",
    "SessionIdMismatch",
    "SessionMoved",
    "SessionNotFound",
    "StatefulError",
    "StoreFailed",
    "TooManySessions",
    "TurnGap",
    "Unauthenticated",
]


# TorchServe closes the connection right after an error, so a client may lose a part of a long one. A message can repeat the
# name of a field, which is as long as the client makes it.
_MAX_CHARS = 400


class StatefulError(Exception):
    """Base of all errors of this package.

    `message` is for people. `field` is the path of the wrong field in the request, like `images[0].url`. `retry_after_s` is
    the time to wait before a retry, where it is known.
    """

    code: ClassVar[str] = ""
    status: ClassVar[int] = 500
    retryable: ClassVar[bool] = False

    def __init__(
        self, message: str, *, field: str | None = None, retry_after_s: float | None = None
    ) -> None:
        super().__init__(message)
        self.message = message
        self.field = field
        self.retry_after_s = retry_after_s

    def to_body(self) -> dict[str, dict[str, Any]]:
        """Return the JSON body of the answer, `{"error": {...}}`, with long texts cut."""
        error: dict[str, Any] = {
            "code": self.code,
            "status": self.status,
            "message": _clipped(self.message),
            "retryable": self.retryable,
        }
        if self.field is not None:
            error["field"] = _clipped(self.field)
        if self.retry_after_s is not None:
            error["retry_after_s"] = self.retry_after_s
        return {"error": error}


class InvalidRequest(StatefulError):
    """The request is malformed, contradictory or out of range."""

    code, status = "invalid_request", 400


class SessionIdMismatch(InvalidRequest):
    """Header and body name different sessions."""

    code = "session_id_mismatch"


class Unauthenticated(StatefulError):
    """The request names no principal that the server accepts (`handler.auth`)."""

    code, status = "unauthenticated", 401


class ModelNotFound(StatefulError):
    """The server has no model of this name."""

    code, status = "model_not_found", 404


class RequestTimeout(StatefulError):
    """The request did not come as a whole within the server's limits of time."""

    code, status, retryable = "request_timeout", 408, True


class MediaError(StatefulError):
    """An image was refused."""


class MediaInvalid(MediaError):
    """The image cannot be decoded."""

    code, status = "media_invalid", 400


class MediaForbidden(MediaError):
    """The scheme, host or address of a URL is not allowed."""

    code, status = "media_forbidden", 403


class MediaTooLarge(MediaError):
    """The image has more bytes or pixels than the server allows."""

    code, status = "media_too_large", 413


class SessionError(StatefulError):
    """The session is not in the state that the request needs."""


class SessionNotFound(SessionError):
    """No session of this id was ever opened here."""

    code, status = "session_not_found", 404


class SessionExpired(SessionError):
    """The session's idle time or lifetime has passed."""

    code, status = "session_expired", 410


class SessionClosed(SessionError):
    """The session was closed."""

    code, status = "session_closed", 410


class SessionExists(SessionError):
    """A session of this id is open already."""

    code, status = "session_exists", 409


class SessionMoved(SessionError):
    """Another server committed a turn of this session."""

    code, status, retryable = "session_moved", 409, True


class TurnGap(SessionError):
    """The turn number does not follow the last committed turn."""

    code, status = "turn_gap", 409


class ContextTooLong(StatefulError):
    """History, prompt and images do not fit the context window, or the JSON exceeds `handler.limits.maxJsonBytes`."""

    code, status = "context_too_long", 413


class Overloaded(StatefulError):
    """The server is full for now; try again after `retry_after_s`."""

    status, retryable = 429, True


class TooManySessions(Overloaded):
    """`maxNumSequence` sessions are open."""

    code = "too_many_sessions"


class QueueFull(Overloaded):
    """`maxSequenceJobQueueSize` prompts of this session are waiting."""

    code = "queue_full"


class QuotaExceeded(Overloaded):
    """The principal uses all of a quota, whose key `field` names."""

    code = "quota_exceeded"


class ServerBusy(Overloaded):
    """The requests in flight have as many bytes as `handler.limits.maxInFlightBytes` allows."""

    code, status = "server_busy", 503


class InternalError(StatefulError):
    """A defect of the server. Its log has the trace, under the id in the message."""

    code, status = "internal", 500


class KeysUnavailable(StatefulError):
    """The server has not read the keys yet by which it verifies tokens."""

    code, status, retryable = "keys_unavailable", 503, True


class EngineUnavailable(StatefulError):
    """The engine has been restarting for longer than `restartDeadlineSec`, or TorchServe is stopping."""

    code, status, retryable = "engine_unavailable", 503, True


class StoreFailed(StatefulError):
    """The turn could not be written to the store and was rolled back."""

    code, status, retryable = "store_unavailable", 503, True


class OutOfMemory(StatefulError):
    """There is not enough memory, even without all idle sessions."""

    code, status, retryable = "out_of_memory", 507, True


def _clipped(text: str) -> str:
    return text if len(text) <= _MAX_CHARS else f"{text[: _MAX_CHARS - 1]}…"
