"""The part of a kind of model that reads its store, where there is none."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Generic

from ts_stateful.sessions.places import NoParking
from ts_stateful.sessions.session import Session, StateT

__all__ = ["NoStore"]


class NoStore(NoParking, Generic[StateT]):
    """No store: sessions end with their engine, and nothing is found."""

    def search(self, session_id: str, *, in_use: bool) -> Callable[[], Any]:
        """See `ModelKind`."""
        raise AssertionError("there is no store to search")

    def look_after(self, session: Session[StateT]) -> Callable[[], bool] | None:
        """See `ModelKind`."""
        return None

    def erase(self, session_id: str, then: Callable[[Any], None]) -> None:
        """Remove all that the store has of a session that is not here; `then` gets None or the exception of the store."""
        then(None)
