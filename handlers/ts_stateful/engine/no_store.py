"""The part of a kind of model that reads its store, where there is none."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal

from ts_stateful.sessions.places import Parking
from ts_stateful.sessions.session import Session, StateT

__all__ = ["NoStore"]


class NoStore(Parking[StateT]):
    """No store: sessions end with their engine, and nothing is found."""

    def search(self, session_id: str, *, in_use: bool) -> Callable[[], Any]:
        """Return what looks for a session, on a thread of the store. It may raise a `SessionError` or a `StoreError`.

        `in_use`: an engine that died had a request for it, so it was not idle since.
        """
        raise AssertionError("there is no store to search")

    def look_after(self, session: Session[StateT]) -> Callable[[], bool] | None:
        """Return what looks, on a thread of the store, if another engine continued or ended an idle session.

        None: the store does not have it, or not all of it.
        """
        return None

    def ended(
        self,
        session: Session[StateT],
        reason: Literal["closed", "expired"],
        then: Callable[[Any], None] = lambda outcome: None,
    ) -> None:
        """Remove a session that ended; `then` gets None or the exception of the store.

        One that expired here stays in the store if another engine uses it. Without an answer of the store it ends all the same;
        the engine asks the store again later.
        """
        then(None)

    def erase(self, session_id: str, then: Callable[[Any], None]) -> None:
        """Remove all that the store has of a session that is not here; `then` as in `ended`."""
        then(None)
