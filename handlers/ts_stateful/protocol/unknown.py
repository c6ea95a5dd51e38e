"""Errors of values in configurations and requests, with the keys and values that there are instead."""

from __future__ import annotations

import difflib
import functools
import re
from collections.abc import Iterable, Mapping
from itertools import islice
from typing import Any, Final

import msgspec
from msgspec import inspect

__all__ = ["explained", "instead", "meant", "similar"]

_MAX_COMPARED: Final = 16  # keys of a document, which may have many
_UNKNOWN_KEY = re.compile(r"Object contains unknown field `(.*?)`(?: - at `\$(.*)`)?$")
_UNKNOWN_VALUE = re.compile(r"Invalid (?:enum )?value (.*) - at `\$(.*)`$")  # or tag
_NO_OBJECT = re.compile(r"Expected `object`, got `.*` - at `\$(.+)`$")
_AT = re.compile(r"(.*) - at `\$(.*)`$")
_PART = re.compile(r"\.([^.\[\]]+)|\[(?:\d+|\.\.\.)\]")


def explained(error: msgspec.ValidationError, kind: Any, prefix: str) -> str:
    """Return an error of converting to `kind` in words; `prefix` is the key that has the whole."""
    text = str(error)
    known = instead(error, kind, None)
    if found := _UNKNOWN_KEY.match(text):
        return f"{_joined(prefix, found[2] or '', found[1])}: there is no such key{known}"
    if found := _UNKNOWN_VALUE.match(text):
        return f"{_joined(prefix, found[2])}: there is no value {found[1]}{known}"
    found = _AT.match(text)
    reason, path = (found[1], found[2]) if found else (text, "")
    if prefix and reason.startswith(prefix):  # by a check of our own
        return reason
    return f"{_joined(prefix, path) or 'the file'}: {reason[:1].lower()}{reason[1:]}"


def similar(word: str, known: Iterable[str], cutoff: float = 0.7) -> str:
    """Return `; did you mean batchSize?` with the most similar one, or nothing if none is as similar as `cutoff`."""
    close = difflib.get_close_matches(word[:64], known, n=1, cutoff=cutoff)
    return f"; did you mean {close[0]}?" if close else ""


def instead(error: msgspec.ValidationError, kind: Any, document: object) -> str:
    """Return the end of a message about `document`: what is similar to an unknown key or value, or all that there are."""
    if found := _UNKNOWN_VALUE.match(str(error)):
        return _instead(found[1].strip("'"), _values(_type_at(_info(kind), found[2])))
    if (found := _NO_OBJECT.match(str(error))) and (keys := _keys(kind, found[1])):
        return f"; its keys are {', '.join(keys)}"
    found = _UNKNOWN_KEY.match(str(error))
    if found is None:
        return ""
    path = found[2] or ""
    tags = document if not path and isinstance(document, dict) else {}
    return _instead(found[1], _keys(kind, path, tags))


def meant(document: Mapping[str, Any], types: tuple[str, ...]) -> str:
    """Return the end of a message about a request of an unknown `type`; it may also have a misspelled field instead."""
    if isinstance(document["type"], str):
        return similar(document["type"], types)
    few = islice(document, _MAX_COMPARED)
    return next(filter(None, (similar(key, ("prompt", "inputs")) for key in few)), "")


def _instead(word: str, known: list[str]) -> str:
    if close := similar(word, known):
        return close
    return f"; there are: {', '.join(sorted(known))}" if known else ""


def _joined(prefix: str, path: str, key: str = "") -> str:
    return ".".join(filter(None, (prefix, path.lstrip("."), key)))


def _keys(kind: Any, path: str, tags: Mapping[str, Any] = {}) -> list[str]:
    return sorted(set(_fields(_type_at(_info(kind), path), tags)))


@functools.cache
def _info(kind: Any) -> inspect.Type:
    return inspect.type_info(kind)


def _fields(kind: inspect.Type | None, tags: Mapping[str, Any]) -> list[str]:
    """Return the fields of a struct, or of those of a union; of the one that has the tag in `tags`, if there is one."""
    parts = kind.types if isinstance(kind, inspect.UnionType) else (kind,)
    structs = [part for part in parts if isinstance(part, inspect.StructType)]
    tagged = [one for one in structs if one.tag_field and one.tag == tags.get(one.tag_field)]
    return [field.encode_name for struct in tagged or structs for field in struct.fields]


def _values(kind: inspect.Type | None) -> list[str]:
    if isinstance(kind, inspect.LiteralType):
        return [str(value) for value in kind.values]
    parts = kind.types if isinstance(kind, inspect.UnionType) else ()
    return [value for part in parts for value in _values(part)]


def _type_at(kind: inspect.Type | None, path: str) -> inspect.Type | None:
    """Return the type of a value at a path such as `.store.tls` or `.states[0]`; None where keys are free."""
    for part in _PART.finditer(path):
        kind = _member(kind, part[1])
    return kind


def _member(kind: inspect.Type | None, key: str | None) -> inspect.Type | None:
    if isinstance(kind, inspect.UnionType):
        found = tuple(filter(None, (_member(part, key) for part in kind.types)))
        return inspect.UnionType(found) if found[1:] else next(iter(found), None)
    if key is None:
        items = inspect.ListType | inspect.VarTupleType
        return kind.item_type if isinstance(kind, items) else None
    if isinstance(kind, inspect.StructType):
        if key == kind.tag_field:
            return inspect.LiteralType((str(kind.tag),))
        return next((field.type for field in kind.fields if field.encode_name == key), None)
    return kind.value_type if isinstance(kind, inspect.DictType) else None
