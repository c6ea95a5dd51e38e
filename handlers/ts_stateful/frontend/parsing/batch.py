"""Several requests to a model with recurrent state in one body."""

from __future__ import annotations

import json
from typing import Annotated, Any, Final, Literal

import msgspec
from msgspec import Meta, Raw, Struct

from ts_stateful.frontend.parsing.limits import BodyLimits, Parts
from ts_stateful.protocol.strict_json import convert, parse_json

__all__ = ["split_batch"]

_MARK: Final = b'"batch"'
_OWN_QUOTES: Final = 6  # of the two keys and of `type`'s value


class _Batch(Struct, forbid_unknown_fields=True):
    type: Literal["batch"]
    requests: Annotated[list[Raw], Meta(min_length=1)]


class _TaggedBatch(_Batch, forbid_unknown_fields=True):
    id: Any = None


class _AnyBatch(Struct, forbid_unknown_fields=True):
    """The same, to find what is wrong."""

    type: Literal["batch"]
    requests: Annotated[list[Any], Meta(min_length=1)]


def split_batch(data: Parts, limits: BodyLimits, *, is_tagged: bool = False) -> list[Parts] | None:
    """Return the requests of a batch as if each had come alone; None if the body is another request.

    What came beside the JSON belongs to each of them. They are not parsed: each will have its own answer or error. A batch that
    `is_tagged` may have an `id`, which is for its transport.

    Raises:
        StatefulError: the batch has another form, or exceeds a limit.
    """
    key = "data" if "data" in data else "body"
    body = bytes(data.get(key, b""))
    if _MARK not in body:
        return None
    limits.check_request(data)
    limits.check_json(body)
    try:
        decode = _decode_tagged if is_tagged else _decode
        texts = [bytes(one) for one in decode(body).requests]
    except msgspec.DecodeError:
        _check(body, is_tagged)
        return None
    if body.count(b'"') != _OWN_QUOTES + sum(text.count(b'"') for text in texts):
        _check(body, is_tagged)  # of a key that occurs twice, the first one is lost with its quotes
    return [{**data, key: text} for text in texts]


def _check(body: bytes, is_tagged: bool) -> None:
    """Raise what is wrong with a batch. What is none, or no JSON, is for another parser to refuse."""
    try:
        document = json.loads(body)
    except ValueError:
        return
    if isinstance(document, dict) and document.get("type") == "batch":
        checked = parse_json(body)
        if is_tagged:
            checked.pop("id", None)
        convert(checked, _AnyBatch)


_decode = msgspec.json.Decoder(_Batch).decode
_decode_tagged = msgspec.json.Decoder(_TaggedBatch).decode
