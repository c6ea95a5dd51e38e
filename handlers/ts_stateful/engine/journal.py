"""Sessions in the store: written turn by turn, read when they come from elsewhere.

Owns where in its log each session stands, the order of writes, and what becomes of one that fails. Calls of the store run on
threads of their own and their outcome is posted back, so the engine's step never waits for a disk or a network. Knows
nothing of requests or of what entries mean; `chronicle` does.
"""

from __future__ import annotations

import logging
import uuid
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

from ts_stateful.defects import defect
from ts_stateful.errors import SessionMoved, StatefulError, StoreFailed
from ts_stateful.sessions.session import Session
from ts_stateful.store.access import StoreAccess
from ts_stateful.store.base import StoreError
from ts_stateful.store.log import append
from ts_stateful.store.records import Entry

__all__ = ["Done", "Journal", "Write"]

logger = logging.getLogger(__name__)

Done = Callable[[StatefulError | None], None]


class Write(NamedTuple):
    """What is written together: `make`, on a thread of the store, writes values that entries refer to, and gives the entries.

    All of it has to be kept for `ttl_s` seconds.
    """

    make: Callable[[], Sequence[Entry]]
    ttl_s: float


@dataclass(eq=False)
class _Log:
    """The log of one session, as far as this process has written it."""

    position: int = 0
    unwritten: list[Entry] = field(default_factory=list)  # committed here, but not in the store
    waiting: deque[tuple[Write, Done]] = field(default_factory=deque)
    is_writing: bool = False
    has_moved: bool = False


class Journal:
    """Writes for one engine; all methods are for the engine's thread.

    With the policy `required` a write that fails is reported, and what it was about must be undone. With `best_effort` it is
    counted, and made up for with the next one.
    """

    def __init__(
        self,
        access: StoreAccess,
        post: Callable[[Callable[[], None]], None],
    ) -> None:
        self.writer = uuid.uuid4().hex
        self.num_failed = 0  # writes
        self._store, self._policy, self._executor = access
        self._post = post
        self._logs: WeakKeyDictionary[Session[Any], _Log] = WeakKeyDictionary()

    def write(self, session: Session[Any], write: Write, then: Done) -> None:
        """Adds to the session's log, behind what was asked for before; `then` gets the reason if it must be undone."""
        log = self._logs.setdefault(session, _Log())
        log.waiting.append((write, then))
        self._next(session, log)

    def adopted(self, session: Session[Any], position: int) -> None:
        """The session was read from the store, where its log has so many entries."""
        self._logs[session] = _Log(position)

    def is_saved(self, session: Session[Any]) -> bool:
        """Whether everything that was committed is in the store."""
        log = self._logs.get(session)
        return log is not None and not log.unwritten

    def num_entries(self, session: Session[Any]) -> int:
        """How many of the session's entries this process knows to be in the store."""
        log = self._logs.get(session)
        return 0 if log is None else log.position

    def run(self, job: Callable[[], Any], then: Callable[[Any], None]) -> None:
        """Does something with the store on one of its threads; `then` gets what came of it, also if that is an exception."""

        def done() -> None:
            outcome: Any
            try:
                outcome = job()
            except Exception as error:
                outcome = error.with_traceback(None)
            self._post(partial(then, outcome))

        self._executor.submit(done)

    def _next(self, session: Session[Any], log: _Log) -> None:
        if log.is_writing or not log.waiting:
            return
        write, then = log.waiting.popleft()
        log.is_writing = True
        self.run(
            partial(self._append, session.session_id, log, write),
            partial(self._written, session, log, then),
        )

    def _append(self, session_id: str, log: _Log, write: Write) -> bool:
        """Writes everything that is not written yet; False if the session belongs to somebody else. On a store's thread."""
        num_before = len(log.unwritten)
        if log.has_moved:
            return False
        try:
            log.unwritten += write.make()
            while log.unwritten:
                entry = log.unwritten[0]
                if not append(self._store, session_id, log.position, entry, write.ttl_s):
                    log.has_moved = True
                    return False
                log.position += 1
                del log.unwritten[0]
        except Exception:
            if self._policy == "required":
                del log.unwritten[num_before:]
            raise
        return True

    def _written(self, session: Session[Any], log: _Log, then: Done, outcome: Any) -> None:
        log.is_writing = False
        reason: StatefulError | None = None
        if outcome is False:
            reason = SessionMoved("the session goes on at another server; ask again")
        elif isinstance(outcome, Exception):
            self.num_failed += 1
            logger.error("a session could not be written to the store: %s", _what(outcome))
            if self._policy == "required":
                reason = _failure(outcome)
        then(reason)
        self._next(session, log)


def _failure(error: Exception) -> StatefulError:
    if isinstance(error, StoreError):
        return StoreFailed(
            "the session could not be written to its store; the turn was rolled back, send it again",
            retry_after_s=1.0,
        )
    return defect(error, "writing to the store")


def _what(error: Exception) -> str:
    return str(error) if isinstance(error, StoreError) else type(error).__name__
