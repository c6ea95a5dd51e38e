"""JSON documents of requests and answers, with the check of their size."""

from __future__ import annotations

from typing import Any, TypeVar

import msgspec

from ts_stateful.client.errors import ProtocolError, RequestTooLarge, ServerRefused
from ts_stateful.protocol.error_bodies import error_from_body
from ts_stateful.protocol.errors import InvalidRequest, StatefulError
from ts_stateful.protocol.requests import Command, Open, Prompt, Upload

__all__ = [
    "MAX_BODY_BYTES",
    "check_size",
    "encode",
    "is_last",
    "parse",
    "refusal",
    "seconds_to_send",
    "typed",
]

# TorchServe's default `max_request_size`; over gRPC a larger request fails as an obscure reset of the stream.
MAX_BODY_BYTES = 6_553_500
_SHOWN_CHARS = 300
_SLOW_BYTES_PER_S = 100_000.0  # of the slowest line on which files are expected to arrive

Answer = TypeVar("Answer")


def encode(value: object, field: str | None = None) -> bytes:
    """Encode a request, or the value of its `field`, as JSON.

    Raises:
        InvalidRequest: JSON cannot carry a field.
    """
    try:
        return msgspec.json.encode(value)
    except (TypeError, ValueError, OverflowError, RecursionError) as error:
        if isinstance(value, Command):
            for name in value.__struct_fields__:
                encode(getattr(value, name), name)
        raise InvalidRequest(f"`{field}` cannot be sent: {error}", field=field) from None


def seconds_to_send(command: Command, num_raw_bytes: int = 0) -> float:
    """Return the longest time that the files of a request, and its raw bytes, may take to arrive."""
    texts = [image.base64 for image in command.media] if isinstance(command, Open | Prompt) else []
    texts += [command.base64] if isinstance(command, Upload) else []
    return (num_raw_bytes + sum(len(text or "") for text in texts)) / _SLOW_BYTES_PER_S


def check_size(num_bytes: int, max_bytes: int) -> None:
    """Raise `RequestTooLarge` if TorchServe would not take a request of that size."""
    if num_bytes > max_bytes:
        raise RequestTooLarge(
            f"the request has {num_bytes:,} bytes and the server takes {max_bytes:,}; send less at"
            " a time, or raise `max_request_size` in the server's config.properties and"
            " `max_body_bytes` here (SageMaker's limit is fixed)"
        )


def parse(body: bytes, answer: type[Answer], session_id: str | None = None) -> Answer:
    """Decode the typed answer in a body.

    Raises:
        StatefulError: the body is the server's error.
        ProtocolError: the body is neither an answer nor an error, or it is about another session than `session_id`.
    """
    document = _document(body)
    if document is None:
        raise ProtocolError(
            f"the answer is not a JSON object; check the URL and the model: {_shown(body)}"
        )
    found = typed(document, answer)
    if session_id is not None and document.get("session_id") not in (None, session_id):
        raise ProtocolError(f"the answer is about another session than {session_id}")
    return found


def typed(document: dict[str, Any], answer: type[Answer]) -> Answer:
    """Return the typed answer of a JSON object. Raises as `parse` does."""
    error = error_from_body(document)
    if error is not None:
        raise error
    try:
        return msgspec.convert(document, answer)
    except msgspec.ValidationError as invalid:
        raise ProtocolError(
            f"unexpected answer ({invalid}); check the URL and the model: {_shown(msgspec.json.encode(document))}"
        ) from None


def refusal(
    status: int, body: bytes, retry_after: str | None = None
) -> StatefulError | ServerRefused:
    """Return the error that an HTTP error status means: this protocol's, TorchServe's or a proxy's.

    `retry_after` is the header of that name; a date in it is not used.
    """
    document = _document(body) or {}
    error = error_from_body(document)
    if error is not None:
        return error
    kind, message = document.get("type"), document.get("message")
    if isinstance(message, str) and message:
        text = f"{message} (status {status})"
    else:
        text = f"status {status}: {_shown(body) or 'no message'}"
    refused = ServerRefused(text, status=status, kind=str(kind) if kind else None)
    if retry_after is not None and retry_after.isdecimal():
        refused.retry_after_s = float(retry_after)
    return refused


def is_last(body: bytes) -> bool:
    """Return True if an event ends its stream: it has more fields than `text`."""
    document = _document(body)
    return document is None or document.keys() != {"text"}


def _document(body: bytes) -> dict[str, Any] | None:
    try:
        document = msgspec.json.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return None
    return document if isinstance(document, dict) else None


def _shown(body: bytes) -> str:
    return " ".join(body[:_SHOWN_CHARS].decode("utf-8", "replace").split())
