"""A transport that says so once it has been closed.

Owns that alone: what a library makes of a call on something closed, or of a call in whose middle it is closed, differs from
library to library and names none of this package's objects.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping

from ts_stateful.client.errors import ConnectionClosed
from ts_stateful.client.transport import Events, Pipeline, Transport
from ts_stateful.protocol import Command, Prompt

__all__ = ["ClosingTransport"]


class ClosingTransport:
    """See `Transport`. Once it is closed every call raises `ConnectionClosed`, also one in progress in another thread."""

    def __init__(self, transport: Transport) -> None:
        self.max_body_bytes = transport.max_body_bytes
        self._transport = transport
        self._closed = False

    def call(
        self, command: Command, timeout_s: float, raw: Mapping[str, bytes] | None = None
    ) -> bytes:
        """See `Transport.call`."""
        with self._unless_closed():
            return self._transport.call(command, timeout_s, raw)

    def pipeline(self, session_id: str, timeout_s: float) -> Pipeline | None:
        """See `Transport.pipeline`."""
        with self._unless_closed():
            return self._transport.pipeline(session_id, timeout_s)

    def stream(self, command: Prompt, timeout_s: float, stall_s: float) -> Events:
        """See `Transport.stream`."""
        with (
            self._unless_closed(),
            contextlib.closing(self._transport.stream(command, timeout_s, stall_s)) as events,
        ):
            yield from events

    def close(self) -> None:
        """See `Transport.close`."""
        self._closed = True
        self._transport.close()

    @contextlib.contextmanager
    def _unless_closed(self) -> Iterator[None]:
        error = ConnectionClosed(
            "the connection is closed: by `Server.close`, or by the end of its `with` block"
        )
        if self._closed:
            raise error
        try:
            yield
        except Exception:
            if self._closed:
                raise error from None
            raise
