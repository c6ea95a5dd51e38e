"""Who holds a session that is in a store: engines adopt it from one another, and the last one removes it.

Owns the marks of those who have adopted a session and written nothing yet, and how it is known what has become of one that is
not there any more. Knows no model.

Who adopts a session leaves the mark `adopted/<session id>/<number of entries>` and then looks whether the log is still as long;
who lets it expire adds an entry and then looks for the mark. So of two who do so at the same time one sees the other, and a
session that is used somewhere is not removed because it is idle somewhere else.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from ts_stateful.protocol.errors import SessionClosed, SessionError, SessionExpired, SessionNotFound
from ts_stateful.session_log.log import Known, Log, append, forget, num_entries, read
from ts_stateful.session_log.records import Closed, Entry, decode, encode, entry_key, history
from ts_stateful.store.base import Store

__all__ = ["adopt", "end", "has_more"]

Made = TypeVar("Made")

_REMEMBER_S = 3600.0  # how long it is known how a session has ended


def adopt(
    store: Store,
    session_id: str,
    make: Callable[[Log], Made],
    *,
    writer: str,
    now: float,
) -> Made:
    """What `make` makes of the log of a session, which stays from now on when it expires where it comes from.

    `now` is of Unix time. Where `make` fails, nobody has adopted the session.

    Raises:
        SessionError: there is none, by what became of it.
        StoreError: as the store says.
    """
    while True:
        log = read(store, session_id)
        if not log.entries:
            raise _gone(store.get(_ended_key(session_id)))
        opened, _, closed = history(log.entries)
        if closed:
            raise _over(log.entries[-1])
        made = make(log)
        ttl_s = max(1.0, opened.expires_at - now)
        store.create(_mark(session_id, log.known.num_entries), writer.encode(), ttl_s)
        if num_entries(store, session_id) == log.known.num_entries:
            return made


def has_more(store: Store, session_id: str, known: Known) -> bool:
    """Whether the session's log has an entry behind those that are known, or is that of another one by now."""
    position = entry_key(session_id, known.num_entries)
    return store.get(position) is not None or not known.is_in(store, session_id)


def end(store: Store, session_id: str, closed: Closed, known: Known) -> None:
    """Removes a session that has ended, with `closed` as the reason; for an hour it is known how.

    One that has expired behind the entries that are known stays if somebody else holds it, where it has not expired.
    """
    if closed.reason == "expired" and not _take_last(store, session_id, closed, known):
        return
    ended = _ended_key(session_id)
    if not store.create(ended, encode(closed), _REMEMBER_S):  # there was one of this id before
        store.delete(ended)
        store.create(ended, encode(closed), _REMEMBER_S)
    store.delete(_adopted(session_id))
    forget(store, session_id)


def _take_last(store: Store, session_id: str, closed: Closed, known: Known) -> bool:
    """Whether nobody else holds the session, nor can from now on."""
    mark = _mark(session_id, known.num_entries)
    if not known.num_entries or store.get(mark) is not None:
        return False
    if append(store, session_id, known, closed, _REMEMBER_S) is None:
        return False
    if store.get(mark) is None:
        return True
    store.delete(entry_key(session_id, known.num_entries))
    return False


def _mark(session_id: str, count: int) -> str:
    return f"{_adopted(session_id)}/{count:08d}"


def _adopted(session_id: str) -> str:
    return f"adopted/{session_id}"


def _ended_key(session_id: str) -> str:
    return f"ended/{session_id}"


def _gone(ended: bytes | None) -> SessionError:
    if ended is None:
        return SessionNotFound("no session of this id is open here", field="session_id")
    return _over(decode(ended))


def _over(ended: Entry) -> SessionError:
    if isinstance(ended, Closed) and ended.reason == "expired":
        return SessionExpired("the session has expired")
    return SessionClosed("the session was closed")
