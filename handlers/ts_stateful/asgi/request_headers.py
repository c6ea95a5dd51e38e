"""Headers of requests at the front, which no other server has read before."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final

from msgspec import structs

from ts_stateful.frontend.parsing.headers import (
    HEADER_LENGTH,
    HeaderNames,
    RequestHeaders,
    bare_session_id,
    dialogue_of,
)

__all__ = ["grpc_headers", "http_headers", "infer_headers", "texts", "with_underscores"]

_HEADER_LENGTH: Final = HEADER_LENGTH.lower()


def http_headers(
    pairs: Iterable[tuple[str, str]],
    path: str,
    names: HeaderNames,
    *,
    method: str = "",
    infers: bool = False,
) -> RequestHeaders:
    """Read the headers of an HTTP request; names are in lower case, and `path` follows the model's own.

    `infers`: the path is one of the Open Inference Protocol.

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
        method=method,
        dialogue=dialogue_of(pairs),
        origin=next((value for name, value in pairs if name == "origin"), None),
        infers=infers,
        header_length=next((value for name, value in pairs if name == _HEADER_LENGTH), None),
        id_name=names.id,
    )


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


def infer_headers(header_length: int) -> RequestHeaders:
    """Return the headers of a gRPC message of the Open Inference Protocol, whose JSON has so many bytes."""
    return structs.replace(grpc_headers(None), infers=True, header_length=str(header_length))


def _values(pairs: Iterable[tuple[str, str]], names: frozenset[str]) -> list[str]:
    spelled = set(map(with_underscores, names))
    return [value for name, value in pairs if with_underscores(name) in spelled]


def _is_true(values: list[str]) -> bool:
    return any(value.strip().lower() == "true" for value in values)


def texts(metadata: Iterable[tuple[str, str | bytes]]) -> Iterator[tuple[str, str]]:
    """Yield the pairs of gRPC metadata whose values are text, as HTTP has them: their bytes are read as Latin-1."""
    for name, value in metadata:
        if isinstance(value, str):
            yield name.lower(), value.encode().decode("latin-1")
