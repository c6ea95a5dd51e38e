"""The service's errors with its statuses and, where known, its wording. Account and region are invented."""

from __future__ import annotations

import json
from typing import Any

from ts_stateful.protocol.sagemaker import MAX_BODY_BYTES

__all__ = [
    "ACCOUNT",
    "TIMED_OUT",
    "WENT_AWAY",
    "ServiceError",
    "body_too_large",
    "endpoint_not_found",
    "model_error",
    "model_failed",
    "session_not_found",
    "unavailable",
    "validation_error",
    "violated",
]

ACCOUNT = "000000000000"
REGION = "us-east-1"
_MAX_MESSAGE_CHARS = 2048  # of every message, by the service model
TIMED_OUT = (
    "Your invocation timed out while waiting for a response from container primary. Review the latency metrics for each"
    " container in Amazon CloudWatch, resolve the issue, and try again."
)
WENT_AWAY = "An error occurred while handling request as the model process exited."


class ServiceError(Exception):
    """An error of the runtime API. `code` is None where the service names none; `fields` join `Message` in the body."""

    def __init__(self, code: str | None, status: int, message: str, **fields: Any) -> None:
        super().__init__(message)
        self.code = code
        self.status = status
        self.body = json.dumps({**fields, "Message": message}).encode()


def validation_error(message: str) -> ServiceError:
    """Return the error for a wrong request."""
    return ServiceError("ValidationError", 400, message)


def violated(member: str, value: str, constraint: str) -> ServiceError:
    """Return the error for a member of the request that breaks a constraint of the service model."""
    return validation_error(
        f"1 validation error detected: Value '{value}' at '{member}' failed to satisfy constraint:"
        f" Member must {constraint}"
    )


def endpoint_not_found(name: str) -> ServiceError:
    """Return the error for an unknown endpoint."""
    return validation_error(f"Endpoint {name} of account {ACCOUNT} not found.")


def session_not_found(session_id: str) -> ServiceError:
    """Return the error for a session that never existed, was closed, or is past its `Expires`."""
    return validation_error(f"Session {session_id} not found.")


def body_too_large() -> ServiceError:
    """Return the error for a body over the limit. It comes from in front of the service, so it has no name."""
    return ServiceError(None, 413, f"HTTP content length exceeded {MAX_BODY_BYTES} bytes.")


def unavailable() -> ServiceError:
    """Return the error for an endpoint without an instance in service."""
    return ServiceError(
        "ServiceUnavailable", 503, "The service is unavailable. Try your call again."
    )


def model_error(endpoint: str, status: int, body: bytes) -> ServiceError:
    """Return the error for an error status of the container; it carries the original status and body."""
    return _model_error(endpoint, status, body.decode("utf-8", "replace"))


def model_failed(endpoint: str, status: int, reason: str) -> ServiceError:
    """Return the error for a missing answer: `TIMED_OUT` (status 0) or `WENT_AWAY` (500)."""
    return _model_error(endpoint, status, reason)


def _model_error(endpoint: str, status: int, original: str) -> ServiceError:
    at_fault, code = (
        ("client", "CLIENT_ERROR") if 400 <= status < 500 else ("server", "INTERNAL_FAILURE")
    )
    group = f"/aws/sagemaker/Endpoints/{endpoint}"
    console = f"https://{REGION}.console.aws.amazon.com/cloudwatch/home?region={REGION}"
    message = (
        f'Received {at_fault} error ({status}) from primary with message "{original}". See'
        f" {console}#logEventViewer:group={group} in account {ACCOUNT} for more information."
    )
    return ServiceError(
        "ModelError",
        424,
        message[:_MAX_MESSAGE_CHARS],
        ErrorCode=f"{code}_FROM_MODEL",
        LogStreamArn=f"arn:aws:logs:{REGION}:{ACCOUNT}:log-group:{group}",
        OriginalMessage=original[:_MAX_MESSAGE_CHARS],
        OriginalStatusCode=status,
    )
