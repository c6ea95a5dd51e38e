"""Connections to addresses that were checked, within a deadline.

The HTTP library keeps the name for the Host header, SNI and the certificate's check. Its sockets connect only to the given
addresses.
"""

from __future__ import annotations

import socket
import ssl
from collections.abc import Iterable, Sequence
from typing import Any

import httpcore

from ts_stateful.clock import Clock

__all__ = ["DeadlineStream", "PinnedBackend", "Resolver", "TimeLimit"]


class Resolver:
    """The system's resolver of host names."""

    def resolve(self, host: str, port: int) -> Sequence[str]:
        """Return the addresses of `host` in text, best first, each once.

        Raises:
            OSError: the name does not resolve.
        """
        try:
            records = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
        except UnicodeError as error:  # a name that cannot be put into a query
            raise OSError(f"the name {host!r} cannot be resolved") from error
        return list(dict.fromkeys(str(record[4][0]) for record in records))


class TimeLimit:
    """A moment by which a fetch must be over, `seconds` from now."""

    def __init__(self, clock: Clock, seconds: float) -> None:
        self._clock = clock
        self._end_s = clock.monotonic() + seconds

    def remaining_s(self) -> float:
        """Return the seconds left, more than 0.

        Raises:
            httpcore.TimeoutException: none are left.
        """
        remaining_s = self._end_s - self._clock.monotonic()
        if remaining_s <= 0:
            raise httpcore.TimeoutException
        return remaining_s


class DeadlineStream(httpcore.NetworkStream):
    """A stream whose every operation has only the time left until the deadline.

    The library's own timeouts are for one operation each, so a server that sends a byte now and then would never exceed them.
    """

    def __init__(self, stream: httpcore.NetworkStream, deadline: TimeLimit) -> None:
        self._stream = stream
        self._deadline = deadline

    def read(self, max_bytes: int, timeout: float | None = None) -> bytes:
        """Read up to `max_bytes` bytes; none at the end of the stream."""
        return self._stream.read(max_bytes, self._deadline.remaining_s())

    def write(self, buffer: bytes, timeout: float | None = None) -> None:
        """Send all of `buffer`."""
        self._stream.write(buffer, self._deadline.remaining_s())

    def close(self) -> None:
        """Close the socket; may be called twice."""
        self._stream.close()

    def start_tls(
        self,
        ssl_context: ssl.SSLContext,
        server_hostname: str | None = None,
        timeout: float | None = None,
    ) -> DeadlineStream:
        """Return this connection with TLS; this object must not be used any more."""
        try:
            remaining_s = self._deadline.remaining_s()
        except httpcore.TimeoutException:
            self.close()  # as every stream does whose TLS fails; the caller only has the new one
            raise
        stream = self._stream.start_tls(ssl_context, server_hostname, remaining_s)
        return DeadlineStream(stream, self._deadline)

    def get_extra_info(self, info: str) -> Any:
        """Return a property of the stream below."""
        return self._stream.get_extra_info(info)


class PinnedBackend(httpcore.NetworkBackend):
    """Connections to the first of `addresses` that answers, for any host.

    `backend` makes the sockets; it gets addresses, never names.
    """

    def __init__(
        self, backend: httpcore.NetworkBackend, addresses: Sequence[str], deadline: TimeLimit
    ) -> None:
        self._backend = backend
        self._addresses = addresses
        self._deadline = deadline

    def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,
        local_address: str | None = None,
        socket_options: Iterable[httpcore.SOCKET_OPTION] | None = None,
    ) -> DeadlineStream:
        """Connect to `port` of one of the addresses; `host` and `timeout` are not used.

        Raises:
            httpcore.ConnectError: no address answers.
            httpcore.TimeoutException: the last address did not answer in time, or no time is left.
        """
        failure: Exception = httpcore.ConnectError()
        for tried, address in enumerate(self._addresses):
            # Equal shares: one dead address must not use up the time of the others.
            share_s = self._deadline.remaining_s() / (len(self._addresses) - tried)
            try:
                stream = self._backend.connect_tcp(
                    address, port, share_s, local_address, socket_options
                )
            except (httpcore.ConnectError, httpcore.ConnectTimeout) as error:
                failure = error
            else:
                return DeadlineStream(stream, self._deadline)
        raise failure
