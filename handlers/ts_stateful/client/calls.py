"""Requests with one answer, repeated within their deadline.

Owns the loop around a transport's call. Every request of the protocol may be repeated: ids are made here and turns are
numbered, so that a repeated one is recognised.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TypeVar

from ts_stateful.client.documents import parse
from ts_stateful.client.errors import ClientError
from ts_stateful.client.retry import Attempts, RetryPolicy
from ts_stateful.client.transport import Transport
from ts_stateful.errors import StatefulError
from ts_stateful.protocol import Command

__all__ = ["Calls"]

Answer = TypeVar("Answer")


class Calls:
    """A transport with its deadline and its policy of retries; what all objects of one connection share.

    Raises:
        ValueError: `timeout_s` is not positive.
    """

    def __init__(self, transport: Transport, timeout_s: float, policy: RetryPolicy) -> None:
        if timeout_s <= 0:
            raise ValueError(f"timeout_s must be positive, not {timeout_s}")
        self.transport = transport
        self.policy = policy
        self._timeout_s = timeout_s

    def attempts(self, timeout_s: float | None) -> Attempts:
        """A new deadline, and no failures yet; None is the connection's own timeout."""
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
        """The answer to a request; `raw` are inputs of a step that are sent as they are.

        `applied` names the error which, after a failed attempt, says that the failed one was applied all the same, and how the
        lost answer is made up.

        Raises:
            StatefulError: the server's error.
            ClientError: there was no answer.
        """
        attempts = self.attempts(timeout_s)
        while True:
            try:
                body = self.transport.call(command, attempts.deadline.remaining_s(), raw)
                return parse(body, answer)
            except (ClientError, StatefulError) as error:
                if applied is not None and attempts.num_failures and isinstance(error, applied[0]):
                    return applied[1]()
                attempts.wait_after(error)
