"""Server-sent events: the data of events from bytes (https://html.spec.whatwg.org/multipage/server-sent-events.html).

Works on bytes: JSON text may hold characters that Python takes for ends of lines.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

__all__ = ["EventParser", "documents"]


def documents(content_type: str, chunks: Iterable[bytes]) -> Iterator[bytes]:
    """Yield the documents of a streamed answer as they come; an answer that is no event stream is one document."""
    if content_type.partition(";")[0].strip().lower() != "text/event-stream":
        if body := b"".join(chunks):
            yield body
        return
    parser = EventParser()
    for chunk in chunks:
        yield from parser.feed(chunk)


class EventParser:
    """Parser of events whose chunks may be cut anywhere."""

    def __init__(self) -> None:
        self._rest = b""
        self._data: list[bytes] = []

    def feed(self, chunk: bytes) -> Iterator[bytes]:
        """Yield the data of every event that `chunk` completes; comments and other fields are skipped."""
        *lines, self._rest = (self._rest + chunk).split(b"\n")
        for line in (line.removesuffix(b"\r") for line in lines):
            if line.startswith(b"data:"):
                self._data.append(line[5:].removeprefix(b" "))
            elif not line and self._data:
                yield b"\n".join(self._data)
                self._data = []
