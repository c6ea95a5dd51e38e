"""From answers to the events that a worker gets.

Owns the terminal documents of requests and their times of day. Knows nothing of models; decides nothing.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import datetime, timezone
from typing import Any

from ts_stateful.protocol.answers import encode
from ts_stateful.protocol.errors import StatefulError
from ts_stateful.protocol.events import Event, EventKind

__all__ = ["Outbox"]


class Outbox:
    """Emits events. `clock` is the engine's monotonic clock, `utc` tells Unix time."""

    def __init__(
        self,
        emit: Callable[[Event], None],
        clock: Callable[[], float],
        utc: Callable[[], float] = time.time,
    ) -> None:
        self._emit = emit
        self._clock = clock
        self._utc = utc

    def unix_time(self, at: float) -> int:
        """The Unix time, in whole seconds, at which the engine's clock shows `at`."""
        return int(self._utc() + at - self._clock())

    def rfc3339(self, at: float) -> str:
        """The same moment as RFC 3339 has it, in UTC."""
        moment = datetime.fromtimestamp(self.unix_time(at), timezone.utc)
        return moment.strftime("%Y-%m-%dT%H:%M:%SZ")

    def answer(self, request_id: str, document: Any, **fields: Any) -> None:
        """The terminal answer of a request."""
        self._emit(Event(request_id, EventKind.LAST, encode(document), **fields))

    def refuse(self, request_id: str, error: StatefulError, session_id: str | None = None) -> None:
        """The terminal answer of a request that failed."""
        self.answer(request_id, error.to_body(), status=error.status, session_id=session_id)
