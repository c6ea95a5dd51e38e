"""Connections to addresses that were checked, within a deadline.

Owns what the HTTP library must not decide: which address a name means, and how long everything may
take. The library keeps the name for the Host header, SNI and the certificate's check; the sockets
under it go to the given addresses only.
"""

from __future__ import annotations

import socket
import ssl
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import httpcore

__all__ = ["Clock", "Deadline", "DeadlineStream", "PinnedBackend", "Resolver", "resolve"]

Clock = Callable[[], float]
"""Seconds of a monotonic clock."""

Resolver = Callable[[str, int], Sequence[str]]
"""(host, port) to the addresses of that host in text, best first; raises OSError if it has none."""


def resolve(host: str, port: int) -> list[str]:
    """The addresses of `host` by the system's resolver, best first, each once.

    Raises:
        OSError: the name does not resolve.
    """
    try:
        records = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except UnicodeError as error:  # a name that cannot be put into a query
        raise OSError("the name cannot be resolved") from error
    return list(dict.fromkeys(str(record[4][0]) for record in records))


class Deadline:
    """A moment by which everything must be over; `clock` in seconds."""

    def __init__(self, clock: Clock, seconds: float) -> None:
        self._clock = clock
        self._end_s = clock() + seconds

    def remaining_s(self) -> float:
        """Seconds left, more than 0.

        Raises:
            httpcore.TimeoutException: none are left.
        """
        remaining_s = self._end_s - self._clock()
        if remaining_s <= 0:
            raise httpcore.TimeoutException
        return remaining_s


class DeadlineStream(httpcore.NetworkStream):
    """A stream whose every operation has only what is left until the deadline.

    The library's own timeouts are for one operation each, so a server that sends a byte now and
    then would never meet them.
    """

    def __init__(self, stream: httpcore.NetworkStream, deadline: Deadline) -> None:
        self._stream = stream
        self._deadline = deadline

    def read(self, max_bytes: int, timeout: float | None = None) -> bytes:
        """Up to `max_bytes` bytes, empty at the end of the stream."""
        return self._stream.read(max_bytes, self._deadline.remaining_s())

    def write(self, buffer: bytes, timeout: float | None = None) -> None:
        """Sends all of `buffer`."""
        self._stream.write(buffer, self._deadline.remaining_s())

    def close(self) -> None:
        """Closes the socket; may be called twice."""
        self._stream.close()

    def start_tls(
        self,
        ssl_context: ssl.SSLContext,
        server_hostname: str | None = None,
        timeout: float | None = None,
    ) -> DeadlineStream:
        """This connection with TLS on top; this object must not be used any more."""
        try:
            remaining_s = self._deadline.remaining_s()
        except httpcore.TimeoutException:
            self.close()  # as every stream does whose TLS fails; whoever asked knows of the new one alone
            raise
        stream = self._stream.start_tls(ssl_context, server_hostname, remaining_s)
        return DeadlineStream(stream, self._deadline)

    def get_extra_info(self, info: str) -> Any:
        """What the stream below tells about itself."""
        return self._stream.get_extra_info(info)


class PinnedBackend(httpcore.NetworkBackend):
    """Connects to the first of `addresses` that answers, whatever host it is asked for.

    `backend` makes the sockets; it gets addresses, never names.
    """

    def __init__(
        self, backend: httpcore.NetworkBackend, addresses: Sequence[str], deadline: Deadline
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
        """A connection to `port` of one of the addresses; `host` and `timeout` are not used.

        Raises:
            httpcore.ConnectError: none of them answers.
            httpcore.TimeoutException: the last of them did not answer in time, or no time is left.
        """
        failure: Exception = httpcore.ConnectError()
        for tried, address in enumerate(self._addresses):
            # Equal shares, so that one dead address does not use up the time of the others.
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
