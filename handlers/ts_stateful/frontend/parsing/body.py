"""What is in a row of a batch: where TorchServe has put the JSON and the files of a request.

Owns the keys and types under which bodies come, decoded or not, and the strictness with which they are read. Pure.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from ts_stateful.frontend.dialects.dialect import Content
from ts_stateful.protocol.errors import InvalidRequest
from ts_stateful.protocol.strict_json import parse_json

__all__ = ["check_inputs", "document_of", "read_content", "split"]

_CURL_HINT = "send the JSON as the body, with -H 'Content-Type: application/json'"
# The second says nothing of what the bytes are; clients that were told no type say it, or nothing.
_TYPES = ("application/json", "application/octet-stream", "multipart/form-data")


def read_content(
    data: Mapping[str, Any],
    *,
    is_http: bool,
    content_type: str = "",
    other_inputs: frozenset[str] = frozenset(),
) -> Content:
    """The JSON and the files of a request; over gRPC `other_inputs` are passed over.

    Raises:
        InvalidRequest: there is no JSON object, it is said to be something else, or there is what does not belong there.
    """
    if content_type and content_type not in _TYPES and not content_type.endswith("+json"):
        raise InvalidRequest(f"not a content type of JSON; {_CURL_HINT}", field="content-type")
    key, others = split(data)
    if not is_http:
        check_inputs(others, other_inputs)
        return Content(document_of(data[key]))
    return Content(document_of(data[key]), _attachments(others, key))


def split(data: Mapping[str, Any], hint: str = _CURL_HINT) -> tuple[str, dict[str, Any]]:
    """The key of the JSON, and everything else; `hint` says how to send it.

    Raises:
        InvalidRequest: there is no JSON.
    """
    if not data:
        raise InvalidRequest(f"the request has no body; {hint}")
    key = next((name for name in ("data", "body") if name in data), None)
    if key is None:
        raise InvalidRequest(f"a form without a part named `data`; {hint}")
    return key, {name: value for name, value in data.items() if name != key}


def document_of(value: Any) -> dict[str, Any]:
    """The JSON object in a body, whoever has decoded it.

    Raises:
        InvalidRequest: there is none.
    """
    if isinstance(value, str | bytes | bytearray):
        return parse_json(value)
    try:
        # Decoded by TorchServe, loosely; back to text, so that what is refused does not depend on who decodes.
        return parse_json(json.dumps(value))
    except RecursionError:
        raise InvalidRequest("the body is nested too deeply") from None


def check_inputs(others: Mapping[str, Any], known: frozenset[str]) -> None:
    """Refuses inputs of a gRPC message that are not `known` (in lower case).

    Raises:
        InvalidRequest: there is another one.
    """
    unknown = next((name for name in others if name.lower() not in known), None)
    if unknown is not None:
        raise InvalidRequest("unknown input; the JSON goes into `data`", field=unknown[:64])


def _attachments(others: Mapping[str, Any], key: str) -> tuple[bytes, ...]:
    files = []
    for name, value in others.items():
        if key != "data":
            raise InvalidRequest(
                "unknown parameter; a form takes its JSON in a part named `data`", field=name[:64]
            )
        if not isinstance(value, str | bytes | bytearray):
            raise InvalidRequest("not an image file", field=name[:64])
        files.append(value.encode() if isinstance(value, str) else bytes(value))
    return tuple(files)
