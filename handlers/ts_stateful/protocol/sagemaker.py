"""Header names, session ids and limits of SageMaker's runtime API and container contract.

Sources: the API's service model (`sagemaker-runtime`) and
https://docs.aws.amazon.com/sagemaker/latest/dg/stateful-sessions.html.
"""

from __future__ import annotations

import re

from ts_stateful.protocol.session_ids import NEW_SESSION

__all__ = [
    "CLOSED_SESSION_ID",
    "CUSTOM_ATTRIBUTES",
    "ID_PATTERN",
    "MAX_BODY_BYTES",
    "MAX_CUSTOM_ATTRIBUTES",
    "NEW_SESSION",
    "SESSION_ID",
    "is_endpoint_name",
    "is_session_id",
]

# Of requests; and of a container's answers, `<id>; Expires=...`.
SESSION_ID = "X-Amzn-SageMaker-Session-Id"
CLOSED_SESSION_ID = "X-Amzn-SageMaker-Closed-Session-Id"
CUSTOM_ATTRIBUTES = "X-Amzn-SageMaker-Custom-Attributes"  # the only free header of clients
MAX_CUSTOM_ATTRIBUTES = 1024  # characters

MAX_BODY_BYTES = 6_291_456

ID_PATTERN = "^[a-zA-Z0-9](-*[a-zA-Z0-9])*$"
_MAX_ID_LENGTH = 256
_MAX_NAME_LENGTH = 63
_ID = re.compile(ID_PATTERN.strip("^$"))


def is_session_id(text: str) -> bool:
    """Return True if the service accepts the text as a session id; `NEW_SESSION` is none."""
    return len(text) <= _MAX_ID_LENGTH and _ID.fullmatch(text) is not None


def is_endpoint_name(text: str) -> bool:
    """Return True if an endpoint can have this name."""
    return len(text) <= _MAX_NAME_LENGTH and _ID.fullmatch(text) is not None
