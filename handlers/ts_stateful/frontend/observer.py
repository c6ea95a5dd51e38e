"""Reports of answered requests, for metrics, the log and traces. Never content."""

from __future__ import annotations

from typing import Protocol

import msgspec
from msgspec import Struct

from ts_stateful.frontend.pending_response import PendingResponse
from ts_stateful.protocol.answers import Timing, Usage

__all__ = ["AnswerReport", "Observer", "Observers", "report_of"]


class _Error(Struct, frozen=True):
    code: str = ""


class AnswerReport(Struct, frozen=True):
    """The last document of an answer, as far as it has numbers. A turn has a `finish_reason`."""

    session_id: str | None = None
    turn: int | None = None
    finish_reason: str | None = None
    usage: Usage = Usage()
    timing: Timing = Timing()
    error: _Error | None = None
    replayed: bool = False

    @property
    def per_token_ms(self) -> float | None:
        """The mean time between two tokens of the reply; None if it has fewer."""
        count = self.usage.completion_tokens - 1
        spent_ms = self.timing.total_ms - self.timing.first_token_ms
        return spent_ms / count if count > 0 else None


class Observer(Protocol):
    """A receiver of reports."""

    def answered(self, pending: PendingResponse, report: AnswerReport) -> None:
        """Take the report of a request whose last response was returned."""

    def dropped(self, pending: PendingResponse) -> None:
        """Note a request whose client has disconnected."""


class Observers:
    """Any number of receivers, in order."""

    def __init__(self, *observers: Observer) -> None:
        self._observers = observers

    def answered(self, pending: PendingResponse, report: AnswerReport) -> None:
        """See `Observer`."""
        for observer in self._observers:
            observer.answered(pending, report)

    def dropped(self, pending: PendingResponse) -> None:
        """See `Observer`."""
        for observer in self._observers:
            observer.dropped(pending)


def report_of(body: bytes) -> AnswerReport:
    """Read the last document of an answer. One that is no JSON, such as a raw output, has no numbers."""
    try:
        return _decode(body)
    except (msgspec.DecodeError, ValueError):
        return AnswerReport()


_decode = msgspec.json.Decoder(AnswerReport).decode
