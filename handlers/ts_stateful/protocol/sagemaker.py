"""What SageMaker's runtime API and its container contract say, as far as a client and an endpoint have to agree on it.

Owns header names, the form of session ids and the service's limits, from the API's service model (`sagemaker-runtime`) and
https://docs.aws.amazon.com/sagemaker/latest/dg/stateful-sessions.html. Knows nothing of how requests travel.
"""

from __future__ import annotations

import re
from datetime import datetime, timezone
from typing import NamedTuple

from ts_stateful.protocol.session_ids import NEW_SESSION

__all__ = [
    "CLOSED_SESSION_ID",
    "CONTAINER_VARIABLES",
    "ID_PATTERN",
    "MAX_BODY_BYTES",
    "MODEL_TIMEOUT_S",
    "NEW_SESSION",
    "NEW_SESSION_ID",
    "SESSION_ID",
    "STREAM_TIMEOUT_S",
    "OpenedSession",
    "is_endpoint_name",
    "is_session_id",
    "parse_opened",
]

SESSION_ID = "X-Amzn-SageMaker-Session-Id"  # requests; and of a container, `<id>; Expires=...`
NEW_SESSION_ID = "X-Amzn-SageMaker-New-Session-Id"  # what the service makes of the latter
CLOSED_SESSION_ID = "X-Amzn-SageMaker-Closed-Session-Id"

MAX_BODY_BYTES = 6_291_456
MODEL_TIMEOUT_S = 60.0  # for a whole answer, or the beginning of a stream
STREAM_TIMEOUT_S = 480.0  # for a whole stream

ID_PATTERN = "^[a-zA-Z0-9](-*[a-zA-Z0-9])*$"
_MAX_ID_LENGTH = 256
_MAX_NAME_LENGTH = 63
_ID = re.compile(ID_PATTERN.strip("^$"))
_OPENED = re.compile(r"([^;\s]+);\sExpires=(\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ)", re.ASCII)

CONTAINER_VARIABLES = {
    "TS_REQUEST_SEQUENCE_ID": SESSION_ID,
    "TS_REQUEST_SEQUENCE_END": CLOSED_SESSION_ID,
}
"""The environment in which TorchServe, in the continuous profile, speaks by SageMaker's session headers."""


class OpenedSession(NamedTuple):
    """What a container says of a session that it has opened; `expires_at` in Unix seconds."""

    session_id: str
    expires_at: float


def is_session_id(text: str) -> bool:
    """Whether the service takes it for the id of a session; `NEW_SESSION` is none."""
    return len(text) <= _MAX_ID_LENGTH and _ID.fullmatch(text) is not None


def is_endpoint_name(text: str) -> bool:
    """Whether an endpoint can have that name."""
    return len(text) <= _MAX_NAME_LENGTH and _ID.fullmatch(text) is not None


def parse_opened(value: str) -> OpenedSession | None:
    """The session in a container's `X-Amzn-SageMaker-Session-Id`; None if it opens none."""
    match = _OPENED.fullmatch(value)
    if match is None or not is_session_id(match.group(1)):
        return None
    try:
        expires_at = datetime.strptime(match.group(2), "%Y-%m-%dT%H:%M:%SZ")
    except ValueError:  # a month 13
        return None
    return OpenedSession(match.group(1), expires_at.replace(tzinfo=timezone.utc).timestamp())
