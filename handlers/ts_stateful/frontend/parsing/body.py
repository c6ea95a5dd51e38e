"""Bodies of requests: the JSON object, and the files of a form."""

from __future__ import annotations

from functools import cached_property
from typing import Any

from ts_stateful.frontend.parsing.headers import RequestHeaders
from ts_stateful.frontend.parsing.limits import BodyLimits, Parts
from ts_stateful.protocol.errors import InvalidRequest
from ts_stateful.protocol.strict_json import parse_json

__all__ = ["PUSHED", "RequestBody", "check_inputs", "split"]

_CURL_HINT = "send the JSON as the body, with -H 'Content-Type: application/json'"
# octet-stream describes no format; clients without a configured type send it, or no type at all.
_TYPES = ("application/json", "application/octet-stream", "multipart/form-data")
PUSHED = b"StreamPredictions"
"""The input `rpc` of a message whose call takes several answers."""


class RequestBody:
    """Body of a request, read on first access, and its headers.

    A dialect that the path selects can thus report an unreadable body. Of a gRPC message, `other_inputs` are ignored.
    """

    def __init__(
        self,
        data: Parts,
        headers: RequestHeaders,
        other_inputs: frozenset[str] = frozenset(),
        limits: BodyLimits | None = None,
    ) -> None:
        self.headers = headers
        self._limits = limits or BodyLimits()
        self._data = data
        self._other_inputs = other_inputs

    @property
    def document(self) -> dict[str, Any]:
        """Return the JSON object.

        Raises:
            InvalidRequest: it is missing, has another content type, or comes with unknown inputs.
            StatefulError: it exceeds a limit.
        """
        return self._content[0]

    @property
    def attachments(self) -> tuple[bytes, ...]:
        """Return the files of a form, none of a request without a body. Raises what `document` raises."""
        return () if self.is_empty else self._content[1]

    @property
    def is_empty(self) -> bool:
        """Return True if the request has nothing but parameters of its URL."""
        return not any(self._data.get(name) for name in ("data", "body"))

    @property
    def query(self) -> dict[str, str]:
        """Return the parameters of the URL, in a request without another body."""
        return {
            name: bytes(value).decode("utf-8", "replace")
            for name, value in self._data.items()
            if name not in ("data", "body")
        }

    @property
    def is_unary(self) -> bool:
        """Return True for a gRPC call that takes one message."""
        return not self.headers.is_http and self._data.get("rpc") != PUSHED

    @cached_property
    def _content(self) -> tuple[dict[str, Any], tuple[bytes, ...]]:
        self._limits.check_request(self._data)
        content_type = self.headers.content_type
        if content_type and content_type not in _TYPES and not content_type.endswith("+json"):
            raise InvalidRequest(
                f"{content_type[:64]!r} is no content type of JSON; {_CURL_HINT}",
                field="content-type",
            )
        key, others = split(self._data)
        self._limits.check_json(self._data[key])
        if self.headers.is_http and key == "body" and self.headers.is_openai:
            # A parameter of the URL, such as `api-version`, is a field: one that is unknown is ignored, and named.
            return self.query | parse_json(self._data[key]), ()
        if self.headers.is_http:
            return parse_json(self._data[key]), _attachments(others, key)
        check_inputs(others, self._other_inputs)
        document = parse_json(self._data[key])
        if self.headers.is_tagged:
            document.pop("id", None)
        return document, ()


def split(data: Parts, hint: str = _CURL_HINT) -> tuple[str, Parts]:
    """Return the key of the JSON, and everything else; `hint` is the remedy if it is missing.

    Raises:
        InvalidRequest: there is no JSON.
    """
    if not data:
        raise InvalidRequest(f"the request has no body; {hint}")
    key = next((name for name in ("data", "body") if name in data), None)
    if key is None:
        raise InvalidRequest(
            "the form has no part named `data` with the JSON; send one, as curl's -F data='{...}' does, or "
            + hint
        )
    return key, {name: value for name, value in data.items() if name != key}


def check_inputs(others: Parts, known: frozenset[str]) -> None:
    """Refuse inputs of a gRPC message that are not `known` (lower case).

    Raises:
        InvalidRequest: there is another one.
    """
    unknown = next((name for name in others if name.lower() not in known), None)
    if unknown is not None:
        raise InvalidRequest("unknown input; the JSON goes into `data`", field=unknown[:64])


def _attachments(others: Parts, key: str) -> tuple[bytes, ...]:
    files = []
    for name, value in others.items():
        if key != "data":
            raise InvalidRequest(
                "unknown parameter; a form takes its JSON in a part named `data`", field=name[:64]
            )
        files.append(bytes(value))
    return tuple(files)
