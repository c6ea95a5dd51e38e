"""Headers of requests at the front, which no other server has read before."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

from ts_stateful.frontend.parsing.headers import HeaderNames, RequestHeaders, dialogue_of

__all__ = [
    "bare_session_id",
    "grpc_headers",
    "http_headers",
    "texts",
    "with_underscores",
]

_EXPIRES = re.compile(r";\s*Expires=.*", re.IGNORECASE)


def http_headers(pairs: Iterable[tuple[str, str]], path: str, names: HeaderNames) -> RequestHeaders:
    """Read the headers of an HTTP request; names are in lower case, and `path` follows the model's own.

    A session header may be spelled with `-` for `_`. What an answer has after its id, `; Expires=...`, may come back with it.
    """
    pairs = list(pairs)
    ids = [bare_session_id(value) for value in _values(pairs, names.ids)]
    types = [value for name, value in pairs if name == "content-type"]
    return RequestHeaders(
        is_http=True,
        is_describe=False,
        session_ids=tuple(dict.fromkeys(filter(None, ids))),
        minted_id=None,
        content_type=types[0].partition(";")[0].strip().lower() if types else "",
        starts=_is_true(_values(pairs, names.starts)),
        ends=_is_true(_values(pairs, names.ends)),
        names_session=bool(ids),
        path=path,
        dialogue=dialogue_of(pairs),
        origin=next((value for name, value in pairs if name == "origin"), None),
    )


def bare_session_id(value: str) -> str:
    """Return the session id of a header's value."""
    return _EXPIRES.sub("", value).strip(" \t")


def with_underscores(name: str) -> str:
    """Return the one spelling of a header's name."""
    return name.replace("-", "_")


def grpc_headers(session_id: str | None) -> RequestHeaders:
    """Return the headers of a gRPC message with this `sequence_id`."""
    return RequestHeaders(
        is_http=False,
        is_describe=False,
        session_ids=(session_id,) if session_id else (),
        minted_id=None,
        names_session=session_id is not None,
    )


def _values(pairs: Iterable[tuple[str, str]], names: frozenset[str]) -> list[str]:
    spelled = set(map(with_underscores, names))
    return [value for name, value in pairs if with_underscores(name) in spelled]


def _is_true(values: list[str]) -> bool:
    return any(value.strip().lower() == "true" for value in values)


def texts(metadata: Iterable[tuple[str, str | bytes]]) -> Iterator[tuple[str, str]]:
    """Yield the pairs of gRPC metadata whose values are text."""
    for name, value in metadata:
        if isinstance(value, str):
            yield name.lower(), value
