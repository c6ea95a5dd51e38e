"""Bodies of HTTP requests: bounds, forms, and clients that stop in the middle."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from ts_stateful.asgi.body import BodyReader, BodyTooLong, Disconnected
from ts_stateful.protocol.errors import (
    InvalidRequest,
    MediaTooLarge,
    RequestTimeout,
    ServerBusy,
    StatefulError,
)

_FORM = (
    b'--x\r\nContent-Disposition: form-data; name="data"\r\n\r\n{"type": "open"}\r\n'
    b'--x\r\nContent-Disposition: form-data; name="image"; filename="a.png"\r\n'
    b"Content-Type: image/png\r\n\r\n\x89PNG\x00\r\n--x--\r\n"
)


class Client:
    """A request in chunks; after them it stays open, or ends."""

    def __init__(self, *chunks: bytes, ends: bool = True, leaves: bool = False) -> None:
        self._chunks = list(chunks)
        self._ends = ends
        self._leaves = leaves

    async def receive(self) -> dict[str, Any]:
        """The next message, as a server passes it on."""
        if not self._chunks and self._leaves:
            return {"type": "http.disconnect"}
        if not self._chunks:
            await asyncio.Event().wait()
        body = self._chunks.pop(0)
        more = bool(self._chunks) or not self._ends
        return {"type": "http.request", "body": body, "more_body": more}


def read(
    client: Client,
    *headers: tuple[bytes, bytes],
    query: bytes = b"",
    most: int | None = None,
    **options: Any,
) -> dict[str, bytes]:
    """The parts of a request."""
    scope = {"type": "http", "headers": list(headers), "query_string": query}
    reader = BodyReader(**{"max_bytes": 1000, "idle_s": 60.0, **options})
    return asyncio.run(reader.parts(scope, client.receive, max_parts=4, most=most))


def test_a_body_is_one_part() -> None:
    """Parameters of the URL are others; no body is none."""
    assert read(Client(b"{}", b" ")) == {"body": b"{} "}
    assert read(Client(b""), query=b"a=1&b=%C3%A4") == {"a": b"1", "b": "ä".encode()}


def test_a_form_has_its_parts() -> None:
    """Fields and files are bytes."""
    kind = (b"content-type", b"multipart/form-data; boundary=x")
    expected = {"data": b'{"type": "open"}', "image": b"\x89PNG\x00"}
    assert read(Client(_FORM[:70], _FORM[70:]), kind) == expected
    field = b'--x\r\nContent-Disposition: form-data; name="image"\r\n\r\n\x89PNG\x00\r\n--x--\r\n'
    assert read(Client(field), kind) == {"image": b"\x89PNG\x00"}
    urlencoded = (b"content-type", b"application/x-www-form-urlencoded")
    assert read(Client(b"data=%7B%7D"), urlencoded) == {"data": b"{}"}


def test_parts_of_the_same_name_are_kept_and_counted() -> None:
    """Browsers send several files of one field so. Of too many, their number is for the limits, which refuse it."""
    kind = (b"content-type", b"multipart/form-data; boundary=x")
    part = b'--x\r\nContent-Disposition: form-data; name="a"\r\n\r\n1\r\n'
    found = read(Client(part * 4 + b"--x--\r\n"), kind)
    assert found == dict.fromkeys(("a", "a (1)", "a (2)", "a (3)"), b"1")
    named = part.replace(b'"a"', b'"a (2)"')
    assert len(read(Client(named + part * 2 + b"--x--\r\n"), kind)) == 3
    assert len(read(Client(part * 5 + b"--x--\r\n"), kind)) == 5
    assert len(read(Client(b""), query=b"a=1&a=2&a=3&a=4&a=5")) == 5


@pytest.mark.parametrize(
    ("body", "kind", "problem"),
    [
        (b"x", b"multipart/form-data", InvalidRequest),
        (b"no form", b"multipart/form-data; boundary=x", InvalidRequest),
        (b"&".join(b"a=1" for _ in range(9)), b"application/x-www-form-urlencoded", InvalidRequest),
        (b"y" * 1001, b"application/json", MediaTooLarge),
        (b"--x\r\n" + b"y" * 1001, b"multipart/form-data; boundary=x", MediaTooLarge),
    ],
)
def test_a_body_beyond_its_bounds_is_refused(
    body: bytes, kind: bytes, problem: type[StatefulError]
) -> None:
    """Or one that is not what its type says."""
    with pytest.raises(problem):
        read(Client(body), (b"content-type", kind))


def test_a_length_beyond_the_bound_is_refused_at_once() -> None:
    """Nothing of the body is read."""
    with pytest.raises(MediaTooLarge, match="send less at a time, and images by URL"):
        read(Client(), (b"content-length", b"1001"))


def test_a_caller_may_want_less() -> None:
    """Then a longer body is left where it is, whatever its form."""
    form = (b"content-type", b"multipart/form-data; boundary=x")
    assert read(Client(b"1234"), most=4) == {"body": b"1234"}
    for client, *headers in (
        (Client(), (b"content-length", b"5")),
        (Client(), (b"content-length", b"1001")),
        (Client(b"123", b"45", ends=False),),
        (Client(_FORM[:5], ends=False), form),
    ):
        with pytest.raises(BodyTooLong):
            read(client, *headers, most=4)


def test_a_body_that_stops_is_given_up() -> None:
    """By time, or because the client has disconnected."""
    with pytest.raises(RequestTimeout):
        read(Client(b"{", ends=False), idle_s=0.0)
    with pytest.raises(Disconnected):
        read(Client(b"{", ends=False, leaves=True))


def test_bodies_together_are_bounded() -> None:
    """One that is alone may have all of its bytes."""
    reader = BodyReader(max_bytes=1000, idle_s=60.0, small_bytes=100)
    scope = {"type": "http", "headers": [], "query_string": b""}

    async def play() -> list[object]:
        slow = [
            asyncio.ensure_future(
                reader.parts(scope, Client(b"y" * 900, ends=False).receive, max_parts=4)
            )
            for _ in range(10)
        ]
        done, waiting = await asyncio.wait(slow, timeout=0.1)
        small = await reader.parts(scope, Client(b"y" * 100).receive, max_parts=4)
        assert small == {"body": b"y" * 100}
        for task in waiting:
            task.cancel()
        await asyncio.wait(waiting)
        last = await reader.parts(scope, Client(b"y" * 900).receive, max_parts=4)
        return [*(task.exception() for task in done), last]

    *refused, last = asyncio.run(play())
    assert len(refused) == 2
    assert all(isinstance(error, ServerBusy) for error in refused)
    assert last == {"body": b"y" * 900}
