"""Bodies of HTTP requests: read within bounds of bytes and time, and taken apart."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, AsyncIterator
from typing import Any
from urllib.parse import parse_qsl

from starlette.datastructures import Headers, UploadFile
from starlette.formparsers import MultiPartException, MultiPartParser
from starlette.types import Message, Receive, Scope, Send

from ts_stateful.frontend.parsing.limits import own_name
from ts_stateful.protocol.errors import InvalidRequest, MediaTooLarge, RequestTimeout, ServerBusy

__all__ = ["BodyReader", "BodyTooLong", "Disconnected", "discard", "leave_unread"]

_FORM, _MULTIPART = "application/x-www-form-urlencoded", "multipart/form-data"
_MAX_HELD = 8
_LINGER_S = 2.0  # for the rest of a body
_SMALL_BYTES = 65_536  # such a body is never refused for the bytes of others


class Disconnected(Exception):
    """The client closed the connection before the end of its request."""


class BodyTooLong(Exception):
    """The body is longer than the caller wants to read."""


class _FormParser(MultiPartParser):
    """A parser that does not decode fields: an image may come without the name of a file."""

    def on_part_end(self) -> None:
        """Keep the bytes of a field."""
        part = self._current_part
        if part.file is None:
            self.items.append((part.field_name, bytes(part.data)))  # type: ignore[arg-type]
        else:
            super().on_part_end()


class BodyReader:
    """Reader of bodies of up to `max_bytes`, of which something comes within every `idle_s`.

    All bodies that are being read have `_MAX_HELD` times as many bytes at most, beside those of up to `small_bytes` each: large
    bodies that arrive slowly keep no prompt out.
    """

    def __init__(
        self, max_bytes: int, idle_s: float = 60.0, small_bytes: int = _SMALL_BYTES
    ) -> None:
        self._max_bytes = max_bytes
        self._idle_s = idle_s
        self._small = small_bytes
        self._held = 0

    async def parts(
        self, scope: Scope, receive: Receive, max_parts: int, most: int | None = None
    ) -> dict[str, bytes]:
        """Return the parts of a request by name; a body that is no form is the part `body`.

        Raises:
            Disconnected: the client has closed the connection.
            BodyTooLong: the body has more than `most` bytes; no more of it was read.
            StatefulError: the body is too large or too slow, or is no form although its type says so.
        """
        headers = Headers(scope=scope)
        length = headers.get("content-length", "")
        if length.isdecimal():
            self._check_size(int(length), most)
        parts = _by_name(_pairs(scope["query_string"], max_parts), max_parts)
        kind = headers.get("content-type", "").partition(";")[0].strip().lower()
        chunks = self._chunks(receive, most)
        if kind == _MULTIPART:
            return parts | await self._form(headers, chunks, max_parts)
        body = b"".join([chunk async for chunk in chunks])
        if kind == _FORM:
            return parts | _by_name(_pairs(body, max_parts), max_parts)
        if body:
            parts["body"] = body
        return parts

    async def _form(
        self, headers: Headers, chunks: AsyncGenerator[bytes, None], max_parts: int
    ) -> dict[str, bytes]:
        parser = _FormParser(
            headers,
            chunks,
            max_files=max_parts + 1,
            max_fields=max_parts + 1,
            max_part_size=self._max_bytes,
        )
        parser.spool_max_size = self._max_bytes  # in memory
        try:
            form = await parser.parse()
        except MultiPartException as error:
            raise InvalidRequest(f"not a form: {error.message}", field="body") from None
        parts: dict[str, Any] = {}
        for name, value in form.multi_items():
            content = await value.read() if isinstance(value, UploadFile) else value
            parts[own_name(name, parts)] = content
        await form.close()
        return _by_name(list(parts.items()), max_parts)

    async def _chunks(self, receive: Receive, most: int | None) -> AsyncGenerator[bytes, None]:
        size = 0
        try:
            async for chunk in self._received(receive):
                size += len(chunk)
                self._held += len(chunk)
                self._check_size(size, most)
                if size > self._small and self._held > max(size, _MAX_HELD * self._max_bytes):
                    raise ServerBusy(
                        "too many large requests are being received; try again later",
                        retry_after_s=1.0,
                    )
                yield chunk
        finally:
            self._held -= size

    async def _received(self, receive: Receive) -> AsyncGenerator[bytes, None]:
        more = True
        while more:
            try:
                message = await asyncio.wait_for(receive(), self._idle_s)
            except asyncio.TimeoutError:
                raise RequestTimeout(
                    f"nothing of the body came for {self._idle_s:g} s; send it again"
                ) from None
            if message["type"] == "http.disconnect":
                raise Disconnected
            yield message.get("body", b"")
            more = message.get("more_body", False)

    def _check_size(self, size: int, most: int | None) -> None:
        if most is not None and size > most:
            raise BodyTooLong
        if size > self._max_bytes:
            raise MediaTooLarge(
                f"the request has more than {self._max_bytes} bytes (--max-body-bytes); send less at a time,"
                " and images by URL or in parts, by `upload`",
                field="body",
            )


@contextlib.asynccontextmanager
async def leave_unread(receive: Receive, send: Send) -> AsyncIterator[tuple[Receive, Send]]:
    """Answer a request whose body is not read, by the `receive` and `send` of this context; then close the connection.

    For a moment what comes of the body is thrown away. A client that still sends it would lose the answer with the connection.
    """

    async def receive_nothing() -> Message:
        await asyncio.Event().wait()
        raise AssertionError("unreachable")

    async def send_open(message: Message) -> None:
        if message["type"] == "http.response.start":
            message["headers"] = [*message["headers"], (b"connection", b"close")]
        else:
            message["more_body"] = True
        await send(message)

    yield receive_nothing, send_open
    await discard(receive)
    await send({"type": "http.response.body", "body": b"", "more_body": False})


async def discard(receive: Receive) -> None:
    """Read the rest of a body for a moment, and drop it. A close before its end resets the connection."""

    async def read() -> None:
        while (await receive()).get("more_body", False):  # the message of a disconnection has none
            pass

    with contextlib.suppress(asyncio.TimeoutError):
        await asyncio.wait_for(read(), _LINGER_S)


def _by_name(pairs: list[tuple[str, bytes]], max_parts: int) -> dict[str, bytes]:
    """Return parts by name. Of too many, return one more than `max_parts`: those of the same name would count as one."""
    return dict(pairs) if len(pairs) <= max_parts else {str(n): b"" for n in range(max_parts + 1)}


def _pairs(text: bytes, max_parts: int) -> list[tuple[str, bytes]]:
    try:
        found = parse_qsl(text.decode(), keep_blank_values=True, max_num_fields=max_parts + 1)
        return [(name, value.encode()) for name, value in found]
    except (ValueError, UnicodeDecodeError):
        raise InvalidRequest(
            f"more than {max_parts} parameters, or not UTF-8", field="body"
        ) from None
