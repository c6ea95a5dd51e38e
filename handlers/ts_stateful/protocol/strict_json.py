"""Strict parsing of JSON from clients into typed structs."""

from __future__ import annotations

import json
import math
import re
from typing import Any

import msgspec

from ts_stateful.protocol.errors import InvalidRequest
from ts_stateful.protocol.unknown import instead

__all__ = ["convert", "parse_json", "refuse_non_finite"]

_GZIP = b"\x1f\x8b"  # https://www.rfc-editor.org/rfc/rfc1952
# Larger texts are images for the most part, whose strings take both parsers as long.
_QUICK_BYTES = 1 << 16


def parse_json(body: bytes | bytearray) -> dict[str, Any]:
    """Parse a JSON object: UTF-8 only, no duplicate keys, no NaN or Infinity.

    Raises:
        InvalidRequest: the body is anything else.
    """
    if not body:
        raise InvalidRequest('the body is empty; send a JSON object, e.g. {"prompt": "Hello"}')
    if (quick := _parse_quickly(body)) is not None:
        return quick
    try:
        text, constants = bytes(body).decode("utf-8"), list[str]()

        def keep(name: str) -> list[str]:  # a NaN or an infinity, which JSON lacks
            constants.append(name)
            return constants

        document = json.loads(text, object_pairs_hook=_unique_keys, parse_constant=keep)
        if constants:
            field = (_path_of(constants, document) or "")[:128] or None
            raise InvalidRequest(f"{constants[0]} is not JSON; send a finite number", field=field)
    except UnicodeDecodeError:
        remedy = "it is compressed; send it as it is" if body[:2] == _GZIP else "encode it so"
        raise InvalidRequest(f"the body is not UTF-8; {remedy}") from None
    except RecursionError:
        raise InvalidRequest("the body is nested too deeply") from None
    except ValueError as error:  # malformed, or an integer of more digits than Python converts
        reason = error.msg if isinstance(error, json.JSONDecodeError) else "a value is out of range"
        if text.startswith("\ufeff"):
            reason = "it begins with a byte order mark; send it without"
        raise InvalidRequest(f"the body is not JSON: {reason}") from None
    if not isinstance(document, dict):
        raise InvalidRequest("the body must be a JSON object")
    if "\\u" in text:
        _refuse_lone_surrogates(document)
    return document


def _parse_quickly(body: bytes | bytearray) -> dict[str, Any] | None:
    """Return the JSON object; None if its text has to be read by the slower parser, which can see that a key occurs twice.

    Where no quote is escaped, a text has two quotes for each key and each string. A key that occurred twice is lost with its
    quotes.
    """
    if len(body) > _QUICK_BYTES or b"\\" in body:
        return None
    try:
        document = msgspec.json.decode(body)
    except (msgspec.DecodeError, ValueError, RecursionError):  # the other parser has the message
        return None
    if not isinstance(document, dict):
        return None
    return document if msgspec.json.encode(document).count(b'"') == body.count(b'"') else None


def convert(document: object, kind: Any) -> Any:
    """Convert a JSON value to a type, an object to a typed struct.

    Raises:
        InvalidRequest: unknown field, wrong type or range; `field` names it.
    """
    try:
        return msgspec.convert(document, kind, str_keys=True)
    except msgspec.ValidationError as error:
        raise _mismatch(error, document, kind) from None
    except RecursionError:
        raise InvalidRequest("the body is nested too deeply") from None


def refuse_non_finite(document: dict[str, Any]) -> None:
    """Refuse infinite numbers in an object and its `metadata`: JSON allows 1e400, which becomes one.

    Raises:
        InvalidRequest: there is one; `field` names it.
    """
    metadata = document.get("metadata")
    nested = metadata.items() if isinstance(metadata, dict) else ()
    named = ((f"metadata.{key}"[:128], value) for key, value in nested)
    for field, value in (*document.items(), *named):
        if isinstance(value, float) and not math.isfinite(value):
            raise InvalidRequest("must be a finite number", field=field)


def _mismatch(error: msgspec.ValidationError, document: object, kind: Any) -> InvalidRequest:
    refusal = _invalid(str(error), instead(error, kind, document))
    if refusal.field and isinstance(document, dict):
        refusal.field = _with_key(refusal.field, document, kind)
    return refusal


def _unique_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    document = dict(pairs)
    if len(document) != len(pairs):
        seen: set[str] = set()
        twice = next(key for key, _ in pairs if key in seen or seen.add(key))  # type: ignore[func-returns-value]
        raise InvalidRequest("the key occurs twice; send it once", field=twice[:64])
    return document


def _path_of(sought: object, value: Any, path: str = "") -> str | None:
    """Return the path of the first place in a document that has an object; None if there is none."""
    if value is sought:
        return path
    is_list = isinstance(value, list)
    pairs: Any = enumerate(value) if is_list else value.items() if isinstance(value, dict) else ()
    inner = (
        _path_of(sought, item, f"{path}[{key}]" if is_list else f"{path}.{key}".lstrip("."))
        for key, item in pairs
        if isinstance(item, dict | list)
    )
    return next((found for found in inner if found is not None), None)


def _refuse_lone_surrogates(document: dict[str, Any]) -> None:
    # JSON can contain half a surrogate pair, which no tokenizer and no transport accepts.
    try:
        json.dumps(document, ensure_ascii=False).encode()
    except (UnicodeEncodeError, RecursionError):
        raise InvalidRequest(
            "the body contains half a surrogate pair; send whole characters"
        ) from None


def _with_key(field: str, document: dict[str, Any], kind: Any) -> str:
    """Name the key of an object in a field whose value is wrong; msgspec has `[...]` for all keys."""
    name = field.removesuffix("[...]")
    if name == field or name not in document:
        return field
    for key, value in document[name].items():
        try:
            msgspec.convert({name: {key: value}}, kind, str_keys=True)
        except msgspec.ValidationError as error:
            if "[...]" in str(error):
                return f"{name}.{key}"[:128]
    return field


_PATH = re.compile(r" - at (`key` in )?`\$\.?(.*)`$")
_NAMED = re.compile(r"field `([^`]*)`")


def _invalid(message: str, remedy: str = "") -> InvalidRequest:
    """Make an error of msgspec's message: its path, with the name of an unknown or missing field, becomes `field`."""
    path_match = _PATH.search(message)
    path = path_match.group(2) if path_match else ""
    reason = message[: path_match.start()] if path_match else message
    if path_match and path_match.group(1):
        reason += " as a key"
    named = _NAMED.search(reason)
    if named:
        path = f"{path}.{named.group(1)}" if path else named.group(1)
    return InvalidRequest(reason[:1].lower() + reason[1:] + remedy, field=path[:128] or None)
