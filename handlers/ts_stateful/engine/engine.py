"""The engine: requests in, steps, events out, for any kind of model.

Driven by calls of one thread. Knows no process, no socket, no model.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from contextlib import suppress
from functools import partial
from typing import Any, Generic

from msgspec import structs

from ts_stateful.engine.core import EngineCore
from ts_stateful.engine.kind import ModelKind
from ts_stateful.engine.waiting import Missing, PendingRequest
from ts_stateful.protocol.defects import defect
from ts_stateful.protocol.errors import (
    InternalError,
    SessionClosed,
    SessionError,
    SessionExpired,
    SessionNotFound,
    StatefulError,
    StoreFailed,
    TooManySessions,
    TurnGap,
)
from ts_stateful.protocol.events import Submit
from ts_stateful.protocol.requests import Fork, Prompt, Step
from ts_stateful.protocol.stats import Stats
from ts_stateful.sessions.places import UNLIMITED_BYTES
from ts_stateful.sessions.session import Session, StateT
from ts_stateful.store.base import Capacity, StoreCorrupt, StoreError

__all__ = ["SessionEngine"]

logger = logging.getLogger(__name__)

_DAMAGED = "the session's log is damaged, or not readable here: see the engine's log; `close` with `erase` removes it"
_COMMITS = (Fork, Prompt, Step)
_EXPIRY_S = 1.0  # between two looks through the table, for sessions that were opened meanwhile


class SessionEngine(Generic[StateT]):
    """Runs one model on one device for the sessions of one table."""

    def __init__(self, core: EngineCore[StateT], kind: ModelKind[StateT]) -> None:
        self.table = core.table
        self.kind = kind
        self._store = core.store
        self._waiting = core.waiting
        self._backlog = core.backlog
        self._outbox = core.outbox
        self._clock = core.clock
        self._expire_at = core.clock.monotonic()
        if core.config.engine.on_full == "park":
            core.table.places.parking = kind.persistence

    def submit(self, message: Submit) -> None:
        """Take a request; it gets exactly one terminal event, now or later."""
        if self._waiting.has_ready or self._backlog:  # those that came before it
            self.settle()
        self._admit(PendingRequest(message))
        self.settle()

    def drop(self, request_id: str) -> None:
        """Note that the client of a request disconnected."""
        self._backlog.drop(request_id)
        self.kind.drop(request_id)

    def set_away(self, away: bool) -> None:
        """Note if no worker is connected; turns then wait for their clients until one is back."""
        self.kind.set_away(away)

    def tick(self) -> None:
        """Do what is due by the clock, and admit requests whose wait is over."""
        now = self._clock.monotonic()
        if now >= self._expire_at:
            self.table.expire()
            due = self.table.next_deadline()
            self._expire_at = now + _EXPIRY_S if due is None else min(due, now + _EXPIRY_S)
        self.kind.tick()
        if self._store is not None:
            self._store.tick()
        for request in self._backlog.take_late():
            self._admit(request)
        self.settle()

    def next_deadline(self) -> float:
        """Return the engine's time at which `tick` has something to do."""
        deadlines = (self._expire_at, self.kind.next_deadline(), self._backlog.next_deadline())
        return min(at for at in deadlines if at is not None)

    @property
    def busy(self) -> bool:
        """Return True if `step` has something to do."""
        return self.kind.busy

    def step(self) -> None:
        """Run one pass for all sessions that have something to compute, and what follows from it."""
        self.kind.step()
        self.settle()

    def stats(self) -> Stats:
        """Return what this engine holds and has done."""
        table, store = self.table, self._store
        counts, host_bytes = table.counts, table.limits.host_bytes
        capacity = store.access.capacity if store else Capacity()
        return structs.replace(
            self.kind.stats(),
            sessions_open=table.tally.num_kept,
            device_bytes=table.device_bytes,
            host_bytes=table.tally.host_bytes,
            device_budget_bytes=table.limits.device_bytes or 0,
            host_budget_bytes=0 if host_bytes == UNLIMITED_BYTES else host_bytes,
            sessions_opened=counts.opened,
            sessions_adopted=counts.adopted,
            sessions_closed=counts.closed,
            sessions_expired=counts.expired,
            sessions_parked=counts.parked,
            evictions=counts.evicted,
            store_failures=store.num_failed if store else 0,
            store_calls=store.num_calls if store else 0,
            store_seconds=round(store.seconds, 3) if store else 0.0,
            store_capacity_bytes=capacity.total_bytes,
            store_free_bytes=capacity.free_bytes,
        )

    def check_integrity(self) -> None:
        """Assert what must hold between any two calls."""
        self.table.check_integrity()
        self.kind.check_integrity()

    def settle(self) -> None:
        """Admit requests whose wait is over, and remove sessions from the store that expired."""
        self._settle_ready()
        if self._backlog:
            self.table.expire()
            for request in self._backlog.take_ready():
                self._admit(request)
            self._settle_ready()

    def _settle_ready(self) -> None:
        self._remove_expired()
        while self._waiting.has_ready:
            self._admit(self._waiting.next_ready())
            self._remove_expired()

    def _remove_expired(self) -> None:
        for session in self.table.take_expired():
            self.kind.persistence.ended(session, "expired")

    def _admit(self, request: PendingRequest) -> None:
        message = request.message
        if request.error is not None and not message.erases:  # damaged sessions can be erased, too
            self._refuse(message, request.error)
            return
        try:
            if not self._backlog.join(request) and not self._has_to_wait(request):
                self.kind.admit(request)
        except (SessionNotFound, SessionExpired, SessionClosed) as error:
            # A session that was idle here may have been in use elsewhere, and the id of a closed one may be in use again.
            session_id = message.command.session_id
            if session_id is not None and self._can_search(session_id, request):
                self._search(session_id, request)
            else:
                self._refuse(message, _reason(request, error))
        except TurnGap as error:
            if not self._look_after(request, has_gap=True):
                self._refuse(message, _no_answer() if request.is_unsure else error)
        except StatefulError as error:
            if not (isinstance(error, TooManySessions) and self._backlog.add(request, error)):
                self._refuse(message, error)
        except self.kind.fatal:
            raise
        except Exception as error:  # the boundary: a defect fails the request that met it
            self._refuse(message, defect(error, f"taking {type(message.command).__name__}"))

    def _refuse(self, message: Submit, error: StatefulError) -> None:
        self._outbox.refuse(message.request_id, error, message.command.session_id)

    def _has_to_wait(self, request: PendingRequest) -> bool:
        """Put a request into the queue of the first of its sessions that is on its way here or away."""
        if self._store is None:
            return False
        message = request.message
        for session_id in message.session_ids:
            with suppress(SessionError):
                self.table.get(session_id)  # which ends it if its time is up
            self._remove_expired()
            if session_id in self._waiting:
                self._waiting.add(session_id, request)
                return True
            if session_id == message.command.session_id and self._look_after(request):
                return True
            if session_id in request.missing:
                return False
            can_search = self._can_search(session_id, request) and not message.erases
            if can_search and self.kind.searches_first(message, session_id):
                self._search(session_id, request)
                return True
        return False

    def _look_after(self, request: PendingRequest, *, has_gap: bool = False) -> bool:
        """Look once in the store if an idle session that is read, or has a gap, went on or ended elsewhere.

        The request waits meanwhile. Return False if there is nothing to look for.
        """
        message, store = request.message, self._store
        session = self._idle_session(message.command.session_id)
        if store is None or session is None or not (has_gap or self.kind.reads(message, session)):
            return False
        if request.has_looked:
            needs_store = store.policy == "required" and not (has_gap or message.ephemeral)
            if request.is_unsure and needs_store and isinstance(message.command, _COMMITS):
                raise _no_answer()  # the turns here may not count any more
            return False
        job = self.kind.persistence.look_after(session)
        if job is None:
            return False
        request.has_looked = True
        self._waiting.add(session.session_id, request)
        blocked = message.session_ids
        for session_id in blocked:  # requests for a fork come after it
            self._waiting.block(session_id)
        store.run(job, partial(self._looked, session, blocked))
        return True

    def _idle_session(self, session_id: str | None) -> Session[StateT] | None:
        """Return the session of that id if it is here, and idle."""
        with suppress(SessionError):
            session = self.table.get(session_id or "")
            return None if session.busy else session
        return None

    def _looked(self, session: Session[StateT], blocked: Iterable[str], outcome: Any) -> None:
        # Without an answer of the store it is taken to be as it was, but a turn that is missing is no gap.
        if outcome is True and not session.busy:
            self.table.forget(session)
        for session_id in blocked:
            self._waiting.release(session_id, is_unsure=isinstance(outcome, StoreError))

    def _can_search(self, session_id: str, request: PendingRequest) -> bool:
        is_new = session_id not in self.table and session_id not in request.missing
        return self._store is not None and is_new

    def _search(self, session_id: str, request: PendingRequest) -> None:
        """Look for a session in the store; the request waits until that has ended."""
        assert self._store is not None
        in_use = request.message.is_retry or session_id in self.table.places.parked
        job = self.kind.persistence.search(session_id, in_use=in_use)
        self._waiting.add(session_id, request)
        self._store.run(job, partial(self._searched, session_id))

    def _searched(self, session_id: str, outcome: Any) -> None:
        try:
            missing = self._adopt(session_id, outcome)
            # A session with steps to replay comes first: its kind releases the queue.
            replays = missing is None and self.table.get(session_id).busy
        except StatefulError as error:  # its time may be up by now, too
            self._waiting.release(session_id, error=error)
            return
        if missing is None and (first := self._waiting.first(session_id)) is not None:
            self._outbox.adopted(first.request_id, session_id)
        if not replays:
            self._waiting.release(session_id, missing=missing)

    def _adopt(self, session_id: str, outcome: Any) -> Missing | None:
        """Take in the outcome of a search; return `Missing` if there is no such session."""
        try:
            if isinstance(outcome, StatefulError):
                raise outcome
            if isinstance(outcome, StoreError):
                logger.error("a session could not be read from the store: %s", outcome)
                if isinstance(outcome, StoreCorrupt):
                    raise InternalError(_DAMAGED)
                raise _no_answer()
            if isinstance(outcome, Exception):
                raise defect(outcome, "reading a session from the store")
            in_use = self._waiting.has_retry(session_id) or session_id in self.table.places.parked
            return self.kind.adopt(session_id, outcome, in_use=in_use)
        except (SessionNotFound, SessionClosed, SessionExpired) as error:
            return Missing(error)


def _no_answer() -> StoreFailed:
    return StoreFailed("the store of sessions does not answer", retry_after_s=1.0)


def _reason(request: PendingRequest, error: StatefulError) -> StatefulError:
    """Return the refusal to report: the store's, unless it never had the session."""
    missing = request.missing.get(request.message.command.session_id or "")
    if missing is None or missing.error is None:
        return error
    ended_here = not isinstance(error, SessionNotFound)
    return error if ended_here and isinstance(missing.error, SessionNotFound) else missing.error
