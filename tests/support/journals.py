"""Journals whose store is called at once, on the caller's thread."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Executor, Future
from typing import Any, Literal

from ts_stateful.protocol.errors import StatefulError
from ts_stateful.session_log.journal import Journal, LogPosition, Write
from ts_stateful.session_log.ownership import SessionLogs
from ts_stateful.store.access import StoreAccess
from ts_stateful.store.ordered_calls import StoreCalls


class _Results:
    """Runs an action when it is put."""

    def put(self, action: Callable[[], None], /) -> None:
        action()


class _Inline(Executor):
    """Runs what is submitted at once."""

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        fn(*args, **kwargs)
        return Future()


def make_journal(
    logs: SessionLogs[Any], policy: Literal["required", "best_effort"] = "required"
) -> Journal[Any]:
    """Return a journal of these logs."""
    calls = StoreCalls(StoreAccess(logs.store, policy, _Inline()), _Results())
    return Journal(calls, logs, whole="session", part="turn")


def written(journal: Journal[Any], position: LogPosition, write: Write) -> StatefulError | None:
    """Write to the session `a`, and return the error."""
    errors: list[StatefulError | None] = []
    journal.write("a", position, write, errors.append)
    [error] = errors
    return error
