"""The rule by which engines take over sessions of a store, and by which the last one removes them.

The mark `<adopted>/<number of entries>` decides what becomes of a session, or of its last entry. The first of three engines
gets it: one that adopts the session, one in which it expires, or one that takes back the last entry. An engine that finds the
mark of one of the last two does the same, since that engine may have died. One that adopts a session then checks that the log
is still as long. So a session that is used in one place is not removed because it is idle in another.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Generic, Literal, NamedTuple, TypeVar

from msgspec import Struct

from ts_stateful.protocol.errors import SessionClosed, SessionError, SessionExpired, SessionNotFound
from ts_stateful.session_log.codec import Codec, EntryT, Logged
from ts_stateful.session_log.log import Known, Log, SessionLog
from ts_stateful.store.base import Store, StoreUnavailable

__all__ = ["ClosedEntry", "Doubtful", "Ownership", "SessionLogs"]

Made = TypeVar("Made")

logger = logging.getLogger(__name__)

_REMEMBER_S = 3600.0  # the end of a session is known for so long
# Begins a mark in place of an engine's, before the digest of the last entry; after that, the end of the session.
_REMOVES = b"\0"


class ClosedEntry(Logged, frozen=True, tag="closed"):
    """The last entry. `at` is Unix time, in seconds."""

    at: float
    reason: Literal["closed", "expired"] = "closed"


class Doubtful(NamedTuple):
    """An entry whose write after the `known` ones failed, so that the store may have it, for `ttl_s` seconds."""

    known: Known
    entry: Struct
    ttl_s: float


@dataclass(frozen=True)
class Ownership(Generic[EntryT]):
    """The claims of engines on one session. With `ended`, the store remembers for an hour how the session ended."""

    log: SessionLog[EntryT]
    adopted: str  # prefix of the marks
    ended: str | None = None
    cached: str = ""  # prefix of what can be computed again

    def adopt(
        self,
        make: Callable[[Log[EntryT]], tuple[Made, float | None]],
        *,
        writer: str,
        stands_alone: Callable[[EntryT], bool] | None = None,
    ) -> Made:
        """Return the first result of `make`. The session now stays in the store if it expires in another engine.

        The second result of `make` is the life of the mark in seconds; None: the session is not adopted. Nor is it if `make`
        raises an error.

        Raises:
            StoreError: see `SessionLog.read`.
        """
        while True:
            log = self.log.read(stands_alone)
            made, ttl_s = make(log)
            if ttl_s is None:
                return made
            mark = self._leave_mark(log.known, writer.encode(), ttl_s)
            if mark.startswith(_REMOVES):
                self._carry_out(log.known, mark)
            elif not self.log.has_more(log.known):
                return made

    def take_back(self, doubtful: Doubtful) -> None:
        """Remove an entry if the store has it, unless an engine has adopted the session with it: its client may know it.

        Its digest in place of their mark keeps engines from adopting it, also if its write or its removal is carried out late.
        """
        known, entry, ttl_s = doubtful
        data = self.log.codec.encode(entry, known.last)
        after = known.after(data)
        self._carry_out(after, self._leave_mark(after, _REMOVES + after.last, ttl_s))

    def frees(self, known: Known) -> bool:
        """Remove the next entry if an engine takes it back, and perhaps failed to. Return False if there is none."""
        after = known.after(self.log.look(self.log.key(known.num_entries)) or b"")
        mark = self.log.look(self._mark(after.num_entries))
        return mark == _REMOVES + after.last and self._carry_out(after, mark)

    def has_more(self, known: Known, doubtful: Doubtful | None) -> bool:
        """Return True if another engine continued the session or ended it. A `doubtful` entry is taken back first."""
        if doubtful is not None:
            self.take_back(doubtful)
        return self.log.has_more(known)

    def end(self, closed: ClosedEntry, known: Known, keys: Sequence[str]) -> None:
        """Remove a session that ended. One that expired after the `known` entries stays if another engine uses it.

        With `ended` everything goes, the log and the values in it last and at once: if it is interrupted, the session is still
        open. Without `ended` the last entry stays for an hour, so that positions are not used again: neither a removal that is
        carried out late nor an entry of the past counts after it. The `keys` of one that expired go, because the id may begin
        again meanwhile. Without room for the note of its end the session is removed first. So a full store can be emptied.
        """
        if closed.reason == "expired" and not self._take_last(closed, known):
            return
        if self.ended is None:
            self._remove_keys(closed, keys)
            return
        is_noted = self._note(closed)
        # What is cached again, since an engine that wrote some may have seen the log.
        for prefix in (self.adopted, self.cached, self.log.prefix, self.cached):
            self.log.store.delete(prefix)
        if not is_noted:  # a full store has room now
            self._note(closed)

    def end_again(
        self, closed: ClosedEntry, known: Known, keys: Sequence[str], doubtful: Doubtful | None
    ) -> None:
        """Remove a session as `end` does, which failed. One that went on stays, as does a later session of its id."""
        goes_on = self.has_more(known, doubtful) and closed.reason == "closed"
        end = self.log.codec.encode(closed, known.last)
        if goes_on and self.log.look(self.log.key(known.num_entries)) == end:
            self.log.store.delete_keys(keys)  # that `end` failed to remove
        elif not (goes_on and self.log.store.list(self.log.prefix)):
            self.end(closed, known, keys)

    def check_open(self, log: Log[EntryT]) -> None:
        """Raise a `SessionError` if there is no session or it ended; its kind is what became of the session."""
        if not log.entries:
            ended = None if self.ended is None else self.log.store.get(self.ended)
            if ended is None:
                raise SessionNotFound("no session of this id is open here", field="session_id")
            raise _error(self.log.codec.decode(ended))
        if isinstance(log.entries[-1], ClosedEntry):
            raise _error(log.entries[-1])

    def _remove_keys(self, closed: ClosedEntry, keys: Sequence[str]) -> None:
        store = self.log.store
        if closed.reason == "closed":
            try:
                keys = self.log.fence(closed, _REMEMBER_S)
            except StoreUnavailable as error:
                if not error.is_full:
                    raise
                # A full store can be emptied. The keys are free then: another sequence of the id may use them.
                for prefix in (self.adopted, self.log.prefix):
                    store.delete(prefix)
                return
        store.delete(self.adopted)
        store.delete_keys(keys)

    def _note(self, closed: ClosedEntry) -> bool:
        """Write how the session ended. Return False if the store cannot, for instance because it is full."""
        store, ended = self.log.store, self.ended
        assert ended is not None
        data = self.log.codec.encode(closed)
        try:
            if not store.create(ended, data, _REMEMBER_S):  # of an earlier session of this id
                store.delete(ended)
                store.create(ended, data, _REMEMBER_S)
        except StoreUnavailable as error:
            logger.warning("the end of a session could not be noted in the store: %s", error)
            return False
        return True

    def _take_last(self, closed: ClosedEntry, known: Known) -> bool:
        """Return True if no other engine has the session, nor can adopt it from now on."""
        if not known.last or self.log.last(known) is None:
            return False
        mark = _REMOVES + known.last + self.log.codec.encode(closed, known.last)
        return self._leave_mark(known, mark, _REMEMBER_S) == mark and self._carry_out(known, mark)

    def _leave_mark(self, known: Known, value: bytes, ttl_s: float) -> bytes:
        """Return the mark of the known entries, which is `value` if there was none, or one of a replaced entry."""
        store, key = self.log.store, self._mark(known.num_entries)
        while not store.create(key, value, ttl_s):
            mark = self.log.look(key)
            if mark is None:  # it was removed since
                continue
            if mark.startswith(_REMOVES + known.last) or not mark.startswith(_REMOVES):
                return mark
            store.remove(key, mark)
        return value

    def _carry_out(self, known: Known, mark: bytes) -> bool:
        """Remove the last of the known entries, or add the end of the session. Return False if the mark does not say so."""
        removes = _REMOVES + known.last
        if not mark.startswith(removes):
            return False
        if mark != removes:
            closed = self.log.codec.decode(mark[len(removes) :])
            return self.log.append(known, closed, _REMEMBER_S) is not None
        data = self.log.last(known)
        if data is not None:
            self.log.store.remove(self.log.key(known.num_entries - 1), data)
        return True

    def _mark(self, num_entries: int) -> str:
        return f"{self.adopted}/{num_entries:08d}"


@dataclass(frozen=True)
class SessionLogs(Generic[EntryT]):
    """The logs of one kind of session: their codec, and the prefixes of logs, marks, ends and caches."""

    store: Store
    codec: Codec[EntryT]
    prefix: str
    adopted: str
    ended: str | None = None
    cached: str = ""

    def log(self, session_id: str) -> SessionLog[EntryT]:
        """Return the log of a session."""
        return SessionLog(self.store, self.codec, f"{self.prefix}/{session_id}")

    def ownership(self, session_id: str) -> Ownership[EntryT]:
        """Return the claims on a session."""
        ended = f"{self.ended}/{session_id}" if self.ended else None
        of_id = f"{self.adopted}/{session_id}", ended, f"{self.cached}/{session_id}"
        return Ownership(self.log(session_id), *of_id)


def _error(ended: Struct) -> SessionError:
    if isinstance(ended, ClosedEntry) and ended.reason == "expired":
        return SessionExpired("the session has expired")
    return SessionClosed("the session was closed")
