"""The audit log: the principal of each open, close, fork, adoption and refusal. Never content."""

from __future__ import annotations

import hashlib
import json
import logging
from typing import Any, Final, Literal

from msgspec import Struct

from ts_stateful.clock import SYSTEM_CLOCK, Clock, rfc3339
from ts_stateful.protocol.events import Event, EventKind, Submit
from ts_stateful.protocol.requests import Close, Fork, Open

__all__ = ["DISCONNECTED", "AuditLog", "Trace", "shortened"]

logger = logging.getLogger("ts_stateful.audit")

DISCONNECTED: Final = 499
"""The status of a request whose client disconnected before its answer."""

_REFUSED = (401, 429)
_SESSION_DIGITS = 16


class Trace(Struct):
    """The course of one request, as far as the audit log names it; `session_id` is the internal one, of a fork the new one.

    A request that is not `kept` leaves no session.
    """

    verb: str | None = None
    session_id: str | None = None
    kept: bool = True
    opened: bool = False
    closed: bool = False
    adopted: bool = False

    @classmethod
    def of(cls, message: Submit) -> Trace:
        """Begin the trace of a request, without its content."""
        command = message.command
        verbs = {Open: "open", Fork: "fork", Close: "close"}
        session_id = command.session_id
        if isinstance(command, Fork):
            session_id = command.new_session_id
        return cls(verbs.get(type(command)), session_id, not message.ephemeral)

    def note(self, event: Event) -> None:
        """Note an event of the request."""
        self.opened |= event.opened_until is not None
        self.closed |= event.closed
        self.adopted |= event.kind is EventKind.ADOPTED

    def verbs(self, status: int) -> list[str]:
        """Return the verbs of its lines; most requests have none."""
        found = ["adopt"] if self.adopted else []
        if self.verb is not None:
            return [*found, self.verb]
        found += ["open"] if self.kept and self.opened else []
        found += ["close"] if self.kept and self.closed else []
        return found or (["refuse"] if status in _REFUSED else [])


class AuditLog:
    """The writer of lines to the logger `ts_stateful.audit`."""

    def __init__(
        self, form: Literal["none", "text", "json"] = "none", clock: Clock = SYSTEM_CLOCK
    ) -> None:
        self._form = form
        self._clock = clock
        if form != "none":
            logger.setLevel(logging.INFO)  # whatever the level of other logs

    def write(
        self, trace: Trace, principal: str | None, status: int, *, num_bytes: tuple[int, int]
    ) -> None:
        """Write the lines of an answered request; `num_bytes` are those of its body and of its answer."""
        if self._form == "none":
            return
        for verb in trace.verbs(status):
            line = {
                "time": rfc3339(self._clock.unix()),
                "verb": verb,
                "principal": principal,
                "session": shortened(trace.session_id),
                "status": status,
                "bytes_in": num_bytes[0],
                "bytes_out": num_bytes[1],
            }
            logger.info("%s", json.dumps(line) if self._form == "json" else _text(line))


def shortened(session_id: str | None) -> str | None:
    """Return the start of the id's SHA-256, the same on all servers of a store."""
    if session_id is None:
        return None
    return hashlib.sha256(session_id.encode()).hexdigest()[:_SESSION_DIGITS]


def _text(line: dict[str, Any]) -> str:
    """Write the values in order; a principal is quoted, so that it cannot pose as another value."""
    time, verb, *others = line.items()
    pairs = (f"{name}={'-' if value is None else json.dumps(value)}" for name, value in others)
    return f"{time[1]} {verb[1]} {' '.join(pairs)}"
