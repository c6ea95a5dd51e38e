"""Header names, session ids and limits of SageMaker's runtime API and container contract.

Sources: the API's service model (`sagemaker-runtime`) and
https://docs.aws.amazon.com/sagemaker/latest/dg/stateful-sessions.html.
"""

from __future__ import annotations

import re
from datetime import datetime, timezone
from typing import NamedTuple

from ts_stateful.protocol.session_ids import NEW_SESSION

__all__ = [
    "CLOSED_SESSION_ID",
    "CONTAINER_VARIABLES",
    "CUSTOM_ATTRIBUTES",
    "ID_PATTERN",
    "MAX_BODY_BYTES",
    "MAX_CUSTOM_ATTRIBUTES",
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

SESSION_ID = (
    "X-Amzn-SageMaker-Session-Id"  # of requests; and of a container's answers, `<id>; Expires=...`
)
NEW_SESSION_ID = "X-Amzn-SageMaker-New-Session-Id"  # the same for clients, renamed by the service
CLOSED_SESSION_ID = "X-Amzn-SageMaker-Closed-Session-Id"
CUSTOM_ATTRIBUTES = "X-Amzn-SageMaker-Custom-Attributes"  # the only free header of clients
MAX_CUSTOM_ATTRIBUTES = 1024  # characters

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
"""The environment in which TorchServe, in the continuous profile, uses SageMaker's session headers."""


class OpenedSession(NamedTuple):
    """A session that a container has opened; `expires_at` in Unix seconds."""

    session_id: str
    expires_at: float


def is_session_id(text: str) -> bool:
    """Return True if the service accepts the text as a session id; `NEW_SESSION` is none."""
    return len(text) <= _MAX_ID_LENGTH and _ID.fullmatch(text) is not None


def is_endpoint_name(text: str) -> bool:
    """Return True if an endpoint can have this name."""
    return len(text) <= _MAX_NAME_LENGTH and _ID.fullmatch(text) is not None


def parse_opened(value: str) -> OpenedSession | None:
    """Parse a container's `X-Amzn-SageMaker-Session-Id`. Return None if it opens no session."""
    match = _OPENED.fullmatch(value)
    if match is None or not is_session_id(match.group(1)):
        return None
    try:
        expires_at = datetime.strptime(match.group(2), "%Y-%m-%dT%H:%M:%SZ")
    except ValueError:  # a month 13
        return None
    return OpenedSession(match.group(1), expires_at.replace(tzinfo=timezone.utc).timestamp())
