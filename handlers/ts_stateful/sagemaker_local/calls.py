"""One request of the runtime API, as a client sent it: checked, and as the container gets it.

Owns which headers the service knows, and their limits. Everything else that a client sends is dropped, as the service does.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from ts_stateful.protocol.sagemaker import ID_PATTERN, NEW_SESSION, SESSION_ID, is_session_id
from ts_stateful.sagemaker_local.errors import endpoint_not_found, validation_error, violated

__all__ = ["CUSTOM_ATTRIBUTES", "VARIANT", "Call", "read_call"]

CUSTOM_ATTRIBUTES = "X-Amzn-SageMaker-Custom-Attributes"
VARIANT = "AllTraffic"  # the only one
_MAX_CUSTOM_ATTRIBUTES = 1024

_PASSED = ("Content-Type", CUSTOM_ATTRIBUTES, SESSION_ID, "X-Amzn-SageMaker-Inference-Id")
# `Accept` of a stream travels under a name of its own, because the stream itself is of another type.
_ACCEPTS = ("X-Amzn-SageMaker-Accept", "Accept")
# Parameters of endpoints with several models, containers or components.
_ELSEWHERE = {
    "X-Amzn-SageMaker-Target-Model": "targetModel",
    "X-Amzn-SageMaker-Target-Container-Hostname": "targetContainerHostname",
    "X-Amzn-SageMaker-Inference-Component": "inferenceComponentName",
}
_ASCII = re.compile(r"[\x00-\x7f]*")


@dataclass(frozen=True)
class Call:
    """`session_id` is None without a session and for a new one; `headers` are those that the container gets."""

    session_id: str | None
    headers: dict[str, str]


def read_call(endpoint: str, asked_for: str, headers: Mapping[str, str], *, streams: bool) -> Call:
    """The call that a request's headers (compared without regard to case) make to the endpoint that it asks for.

    Raises:
        ServiceError: the service would refuse it.
    """
    if asked_for != endpoint:
        raise endpoint_not_found(asked_for)
    variant = headers.get("X-Amzn-SageMaker-Target-Variant", VARIANT)
    if variant != VARIANT:
        raise validation_error(f"Variant {variant} not found for endpoint {endpoint}.")
    for name, member in _ELSEWHERE.items():
        if name in headers:
            raise validation_error(f"Endpoint {endpoint} does not support {member}.")
    attributes = headers.get(CUSTOM_ATTRIBUTES, "")
    if len(attributes) > _MAX_CUSTOM_ATTRIBUTES or not _ASCII.fullmatch(attributes):
        limit = f"have length less than or equal to {_MAX_CUSTOM_ATTRIBUTES}, in ASCII"
        raise violated("customAttributes", "***", limit)
    passed = {name: headers[name] for name in _PASSED if name in headers}
    accept = next((headers[name] for name in _ACCEPTS if name in headers), None)
    if accept is not None:
        passed["Accept"] = accept
    return Call(_session_id(headers.get(SESSION_ID), streams=streams), passed)


def _session_id(value: str | None, *, streams: bool) -> str | None:
    """A stream cannot open a session: there `NEW_SESSION` is an id of the wrong form."""
    if value is None or (value == NEW_SESSION and not streams):
        return None
    if not is_session_id(value):
        pattern = ID_PATTERN if streams else f"^({NEW_SESSION})$|{ID_PATTERN}"
        raise violated("sessionId", value, f"satisfy regular expression pattern: {pattern}")
    return value
