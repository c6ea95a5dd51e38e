"""One request of the runtime API: checked, and as the container receives it."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from deploy.sagemaker.local.errors import endpoint_not_found, validation_error, violated
from ts_stateful.protocol.sagemaker import (
    CUSTOM_ATTRIBUTES,
    ID_PATTERN,
    MAX_CUSTOM_ATTRIBUTES,
    NEW_SESSION,
    SESSION_ID,
    is_session_id,
)

__all__ = ["VARIANT", "Invocation", "read_invocation"]

VARIANT = "AllTraffic"  # the only one

# The service drops all other headers.
_PASSED = ("Content-Type", CUSTOM_ATTRIBUTES, SESSION_ID, "X-Amzn-SageMaker-Inference-Id")
# A stream has its own media type, so `Accept` for its content has another name.
_ACCEPTS = ("X-Amzn-SageMaker-Accept", "Accept")
# Parameters of endpoints with several models, containers or components.
_UNSUPPORTED = {
    "X-Amzn-SageMaker-Target-Model": "targetModel",
    "X-Amzn-SageMaker-Target-Container-Hostname": "targetContainerHostname",
    "X-Amzn-SageMaker-Inference-Component": "inferenceComponentName",
}
_ASCII = re.compile(r"[\x00-\x7f]*")


@dataclass(frozen=True)
class Invocation:
    """A checked request. `session_id` is None without a session and for a new one; `headers` go to the container."""

    session_id: str | None
    headers: dict[str, str]


def read_invocation(
    endpoint: str, requested: str, headers: Mapping[str, str], *, streams: bool
) -> Invocation:
    """Check the headers of a request for the endpoint `requested`. Lookups in `headers` must ignore case.

    Raises:
        ServiceError: the service would refuse the request.
    """
    if requested != endpoint:
        raise endpoint_not_found(requested)
    variant = headers.get("X-Amzn-SageMaker-Target-Variant", VARIANT)
    if variant != VARIANT:
        raise validation_error(f"Variant {variant} not found for endpoint {endpoint}.")
    for name, member in _UNSUPPORTED.items():
        if name in headers:
            raise validation_error(f"Endpoint {endpoint} does not support {member}.")
    attributes = headers.get(CUSTOM_ATTRIBUTES, "")
    if len(attributes) > MAX_CUSTOM_ATTRIBUTES or not _ASCII.fullmatch(attributes):
        limit = f"have length less than or equal to {MAX_CUSTOM_ATTRIBUTES}, in ASCII"
        raise violated("customAttributes", "***", limit)
    passed = {name: headers[name] for name in _PASSED if name in headers}
    accept = next((headers[name] for name in _ACCEPTS if name in headers), None)
    if accept is not None:
        passed["Accept"] = accept
    return Invocation(_session_id(headers.get(SESSION_ID), streams=streams), passed)


def _session_id(value: str | None, *, streams: bool) -> str | None:
    """Check a session id. A stream cannot open a session, so `NEW_SESSION` is malformed there."""
    if value is None or (value == NEW_SESSION and not streams):
        return None
    if not is_session_id(value):
        pattern = ID_PATTERN if streams else f"^({NEW_SESSION})$|{ID_PATTERN}"
        raise violated("sessionId", value, f"satisfy regular expression pattern: {pattern}")
    return value
