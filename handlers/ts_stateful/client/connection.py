"""A transport that remembers if it was closed and if its model has ever answered.

Libraries differ in what they raise for a call on a closed connection. A model that TorchServe does not know is either
misspelled or about to be registered again.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Mapping

from ts_stateful.client.errors import ConnectionClosed, ServerRefused
from ts_stateful.client.transports.transport import Events, Pipeline, Transport
from ts_stateful.protocol.requests import Command, Prompt

__all__ = ["Connection"]

_CLOSED = (
    "the connection is closed, by `Server.close` or by the end of its `with` block; connect again"
)
_FORKED = "the connection was used before this process was forked, and its sockets are shared; connect in each process"


class Connection:
    """A `Transport` on top of another one, for one process.

    After `close` every call raises `ConnectionClosed`, also a call in progress in another thread. If a model has answered
    and then is not found, it is being registered again, for example by `ts-stateful doctor --repair`. That error is
    retryable.
    """

    def __init__(self, transport: Transport) -> None:
        self.max_body_bytes = transport.max_body_bytes
        self._transport = transport
        self._closed = self._answered = False
        self._pid: int | None = None  # of the process that uses it

    def call(
        self, command: Command, timeout_s: float, raw: Mapping[str, bytes] | None = None
    ) -> bytes:
        """See `Transport.call`."""
        with self._remembered():
            body = self._transport.call(command, timeout_s, raw)
        self._answered = True
        return body

    def pipeline(self, session_id: str, timeout_s: float) -> Pipeline | None:
        """See `Transport.pipeline`."""
        with self._remembered():
            return self._transport.pipeline(session_id, timeout_s)

    def stream(self, command: Prompt, timeout_s: float, stall_s: float) -> Events:
        """See `Transport.stream`."""
        with (
            self._remembered(),
            contextlib.closing(self._transport.stream(command, timeout_s, stall_s)) as events,
        ):
            yield from events

    def close(self) -> None:
        """See `Transport.close`."""
        self._closed = True
        self._transport.close()

    @contextlib.contextmanager
    def _remembered(self) -> Iterator[None]:
        if self._closed:
            raise ConnectionClosed(_CLOSED)
        self._pid = self._pid or os.getpid()
        if self._pid != os.getpid():
            raise ConnectionClosed(_FORKED)
        try:
            yield
        except Exception as error:  # a transport may raise anything after its owner closed it
            if self._closed:
                raise ConnectionClosed(_CLOSED) from None
            if isinstance(error, ServerRefused) and error.is_without_model:
                error.retryable = self._answered
            raise
