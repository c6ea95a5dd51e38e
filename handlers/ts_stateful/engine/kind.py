"""The seam between the engine core and the kinds of model that it runs."""

from __future__ import annotations

from typing import Any, Protocol

from ts_stateful.engine.no_store import NoStore
from ts_stateful.engine.waiting import Missing, PendingRequest
from ts_stateful.protocol.answers import SessionInfo
from ts_stateful.protocol.events import Submit
from ts_stateful.protocol.stats import Stats
from ts_stateful.sessions.session import Session, StateT

__all__ = ["ModelKind"]


class ModelKind(Protocol[StateT]):
    """A model that answers requests of sessions. All methods are for the engine's thread."""

    num_parameters: int
    fatal: type[Exception]  # of a poisoned device: it must end the process

    @property
    def persistence(self) -> NoStore[StateT]:
        """The part that uses the store."""

    def tune(self) -> None:
        """Choose by time what computes passes, before the first one, on the threads that will compute them."""

    def admit(self, request: PendingRequest) -> None:
        """Take a request; it gets exactly one terminal event.

        Raises:
            StatefulError: it is refused.
        """

    def searches_first(self, message: Submit, session_id: str) -> bool:
        """Return True if the store decides what a request means whose session is not here."""

    def adopt(self, session_id: str, found: Any, *, in_use: bool) -> Missing | None:
        """Take in what `search` has found. Return `Missing` if that is no session that goes on.

        Raises:
            StatefulError: there is no room for it, or its time is up.
        """

    def reads(self, message: Submit, session: Session[StateT]) -> bool:
        """Return True if the answer shows what an idle session has, and no write finds that it went on elsewhere."""

    def drop(self, request_id: str) -> None:
        """Note that the client of a request disconnected."""

    def set_away(self, away: bool) -> None:
        """Note if no worker is connected; clients cannot come back meanwhile."""

    def tick(self) -> None:
        """Do what is due by the clock."""

    def next_deadline(self) -> float | None:
        """Return the engine's time at which `tick` has something to do."""

    @property
    def busy(self) -> bool:
        """Return True if `step` has something to do."""

    def step(self) -> None:
        """Run one pass for all that can run together, and what follows from it."""

    def stats(self) -> Stats:
        """Return what it has done and holds; the engine adds sessions and bytes."""

    def describe(self, session: Session[StateT]) -> SessionInfo:
        """Return what `info` answers of a session."""

    def check_integrity(self) -> None:
        """Assert what must hold between any two calls."""
