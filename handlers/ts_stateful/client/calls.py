"""Requests with one answer, repeated within their deadline.

TorchServe forgets requests when their worker dies, so each one has a limit of silence. Every request may be repeated: the
client makes the ids and numbers the turns, by which the server recognizes a repetition.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator, Mapping
from typing import TypeVar

from ts_stateful.client.documents import parse, seconds_to_send
from ts_stateful.client.errors import (
    ClientError,
    ConnectionClosed,
    DeadlineExceeded,
    ServerRefused,
    StreamStalled,
)
from ts_stateful.client.retry import Attempts, Deadline, RetryPolicy
from ts_stateful.client.transports.transport import Events, Pipeline, Transport
from ts_stateful.protocol.errors import StatefulError
from ts_stateful.protocol.requests import Command, Fork, Open, Prompt

__all__ = ["Calls", "Connection"]

_CLOSED = (
    "the connection is closed, by `Server.close` or by the end of its `with` block; connect again"
)
_FORKED = "the connection was used before this process was forked, and its sockets are shared; connect in each process"

Answer = TypeVar("Answer")


class Calls:
    """A transport with its timeout and its retry policy, shared by all objects of one connection.

    Raises:
        ValueError: `timeout_s` is not positive.
    """

    def __init__(self, transport: Transport, timeout_s: float, policy: RetryPolicy) -> None:
        if timeout_s <= 0:
            raise ValueError(f"timeout_s must be positive, not {timeout_s}")
        self.transport: Transport = Connection(transport)
        self.policy = policy
        self._timeout_s = timeout_s

    def attempts(self, timeout_s: float | None) -> Attempts:
        """Start a deadline without failures; None takes the connection's own timeout."""
        return Attempts(self.policy, self._timeout_s if timeout_s is None else timeout_s)

    def call(
        self,
        command: Command,
        answer: type[Answer],
        timeout_s: float | None = None,
        *,
        raw: Mapping[str, bytes] | None = None,
        applied: tuple[type[StatefulError], Callable[[], Answer]] | None = None,
    ) -> Answer:
        """Return the answer to a request; `raw` are inputs of a step that are sent unencoded.

        `applied` names the error which, after a failed attempt, shows that this attempt was applied all the same. Its
        function makes up the lost answer.

        Raises:
            StatefulError: the server's error.
            ClientError: there was no answer.
        """
        attempts = self.attempts(timeout_s)
        # If the caller chose the id, an error could not show which of two requests has taken it.
        may_stall = applied is not None or not isinstance(command, Open | Fork)
        # A new session is named by its answer.
        session_id = None if isinstance(command, Open | Fork) else command.session_id
        is_repeated = False
        while True:
            try:
                body = self.ask(command, attempts.deadline, raw, may_stall=may_stall)
                return parse(body, answer, session_id)
            except (ClientError, StatefulError) as error:
                if applied is not None and is_repeated and isinstance(error, applied[0]):
                    return applied[1]()
                attempts.wait_after(error)
                is_repeated = True

    def ask(
        self,
        command: Command,
        deadline: Deadline,
        raw: Mapping[str, bytes] | None = None,
        *,
        may_stall: bool = True,
    ) -> bytes:
        """Send a request once and return the body of its answer.

        Raises:
            StreamStalled: nothing came for the stall time and the time that the request's files may take; the request
                can be sent again. Raised only if it `may_stall`.
            DeadlineExceeded: nothing came until the deadline.
            StatefulError, ClientError: see `call`.
        """
        left_s = deadline.remaining_s()
        stall_s = self.policy.stall_s + seconds_to_send(
            command, sum(map(len, (raw or {}).values()))
        )
        timeout_s = min(stall_s, left_s) if may_stall else left_s
        try:
            return self.transport.call(command, timeout_s, raw)
        except DeadlineExceeded:
            if timeout_s == left_s:
                raise
            raise StreamStalled(f"no answer for {timeout_s:g} s") from None


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
