"""Terminal answers of any kind of engine, as events for its worker."""

from __future__ import annotations

from typing import Any

from ts_stateful.clock import Clock
from ts_stateful.engine.services import EventSink
from ts_stateful.protocol.answers import Closed, encode
from ts_stateful.protocol.errors import StatefulError
from ts_stateful.protocol.events import Event, EventKind
from ts_stateful.protocol.requests import Close
from ts_stateful.store.ordered_calls import not_erased

__all__ = ["Outbox"]


class Outbox:
    """Emits events."""

    def __init__(self, events: EventSink, clock: Clock) -> None:
        self.events = events
        self.clock = clock

    def until(self, at: float) -> int:
        """Convert the engine's time to the whole seconds of Unix time that events carry."""
        return int(self.clock.unix_of(at))

    def answer(self, request_id: str, document: Any, **fields: Any) -> None:
        """Emit the terminal answer of a request; `fields` are those of `Event`."""
        self.events.emit(Event(request_id, EventKind.LAST, encode(document), **fields))

    def closed(self, request_id: str, command: Close, outcome: Any = None) -> None:
        """Answer a `close`; `outcome` is that of the removal from the store, whose error matters to one that erases."""
        session_id = command.session_id
        if command.erase and isinstance(outcome, Exception):
            self.refuse(request_id, not_erased(), session_id)
        else:
            self.answer(request_id, Closed(session_id or ""), session_id=session_id, closed=True)

    def adopted(self, request_id: str, session_id: str) -> None:
        """Report that a request brought its session from the store."""
        self.events.emit(Event(request_id, EventKind.ADOPTED, session_id=session_id))

    def refuse(self, request_id: str, error: StatefulError, session_id: str | None = None) -> None:
        """Emit the terminal answer of a request that failed."""
        self.answer(request_id, error.to_body(), status=error.status, session_id=session_id)
