"""The log of one session in a store."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Generic, NamedTuple

from msgspec import Struct

from ts_stateful.session_log.codec import Codec, EntryT, Linked
from ts_stateful.store.base import Store, StoreCorrupt, StoreUnavailable

__all__ = ["Known", "Log", "SessionLog"]

_DIGITS = 8
_Alone = Callable[[EntryT], bool] | None


class Known(NamedTuple):
    """A log as far as one process has seen it."""

    num_entries: int = 0  # the next position; positions that were dropped count
    last: bytes = b""  # the digest of the last entry; empty if there is none

    def after(self, data: bytes) -> Known:
        """Return the log with one more entry, of this value."""
        return Known(self.num_entries + 1, _digest(data))


_NOTHING = Known()


@dataclass(frozen=True)
class Log(Generic[EntryT]):
    """The entries that count, in order, and the `keys` of all that the store has below the prefix."""

    entries: Sequence[EntryT] = ()
    known: Known = _NOTHING
    keys: Sequence[str] = ()


@dataclass(frozen=True)
class SessionLog(Generic[EntryT]):
    """Entries under `<prefix>/<position>`, with positions of 8 digits from 0.

    The creator of a position owns the session, so it cannot go on in two places. Every entry has a random `writer`: no two
    processes write the same bytes. Every entry names the bytes before it, so none of an earlier session of this id fits.
    """

    store: Store
    codec: Codec[EntryT]
    prefix: str

    def key(self, position: int) -> str:
        """Return the key of an entry; keys in order are positions in order."""
        assert 0 <= position < 10**_DIGITS
        return f"{self.prefix}/{position:0{_DIGITS}d}"

    def append(
        self, known: Known, entry: Struct, ttl_s: float | None = None, *, drops: bool = False
    ) -> Known | None:
        """Write an entry after the known ones. Return the log known then, or None if another process owns the session.

        That process wrote its own entry there, or removed the session: its id may be that of a new session by now. So the entry
        is taken back if the last known one is missing. Of a log that `drops` its beginning, so is a first one before others.

        A store may write a value and fail to report it. A position that has these very bytes counts as created.

        Raises:
            StoreUnavailable: the entry may have been written. Call again with the same one.
        """
        key, data = self.key(known.num_entries), self.codec.encode(entry, known.last)
        if not self.store.create(key, data, ttl_s) and self.look(key) != data:
            return None
        if known.last:
            is_last = self.last(known) is not None
        else:
            is_last = not drops or self._positions(self.store.list(self.prefix)) == {0}
        if not is_last:
            self.store.remove(key, data)
            return None
        return known.after(data)

    def fence(self, closed: Struct, ttl_s: float) -> Sequence[str]:
        """Write the end after all entries, whatever they are; return the keys before it, which are not used again."""
        while True:
            keys = self.store.list(self.prefix)
            last = max(self._positions(keys), default=-1)
            if last < 0:
                return keys
            known = Known(last).after(self.look(self.key(last)) or b"")
            data = self.codec.encode(closed, known.last)
            if self.store.create(self.key(known.num_entries), data, ttl_s):
                return keys

    def has_more(self, known: Known) -> bool:
        """Return True if there is an entry after the known ones, or if these are not there any more."""
        is_longer = self.look(self.key(known.num_entries)) is not None
        return is_longer or (bool(known.last) and self.last(known) is None)

    def last(self, known: Known) -> bytes | None:
        """Return the value of the last of the known entries, or None if it is not there any more."""
        data = self.look(self.key(known.num_entries - 1))
        return data if data is not None and _digest(data) == known.last else None

    def look(self, key: str) -> bytes | None:
        """Return the value of a key; an empty one if it is there, but damaged or sealed with a key that is missing here."""
        try:
            return self.store.get(key)
        except StoreCorrupt:
            return b""

    def read(self, stands_alone: _Alone[EntryT] = None) -> Log[EntryT]:
        """Return the whole log, or the last entry that `stands_alone` and the entries after it.

        With `stands_alone`, positions before that entry may have been dropped. Without it, a log whose position 0 is missing is
        none.

        Raises:
            StoreCorrupt: an entry is missing, damaged, of a newer version, or does not follow from the one before it.
            StoreUnavailable: see `Store`.
        """
        listed: Sequence[str] | None = None
        has_changed = False
        # A listing may miss an entry that is added meanwhile, but have the one after it; a second listing has both.
        for _ in range(2):
            keys = self.store.list(self.prefix)
            run = _last_run(self._positions(keys))
            if not run or (stands_alone is None and self.key(0) not in keys):
                return Log(keys=keys)
            found = self.store.get_many([self.key(position) for position in run])
            values = [data for data in found if data is not None]
            if len(values) == len(run):
                entries = self._whole(run.start, values, stands_alone)
                if entries is not None:
                    return Log(entries, Known(run.stop, _digest(values[-1])), keys)
                if self._remove_late(run, values, stands_alone):
                    return self.read(stands_alone)
            has_changed = len(values) < len(run) or listed not in (None, keys)
            listed = keys
        if has_changed:
            raise StoreUnavailable("a session changed while it was read", "read it again")
        raise StoreCorrupt(
            "the log of a session has gaps, or entries of an earlier session of its id",
            "erase the session (`close` with `erase`); check what else writes to the store",
        )

    def _positions(self, keys: Sequence[str]) -> set[int]:
        names = [key[len(self.prefix) + 1 :] for key in keys]
        return {int(name) for name in names if len(name) == _DIGITS and name.isdigit()}

    def _whole(
        self, start: int, values: Sequence[bytes], stands_alone: _Alone[EntryT]
    ) -> list[EntryT] | None:
        """Return the entries that count, or None if their beginning is missing or one does not follow from another."""
        entries: list[EntryT] = []
        for index in reversed(range(len(values))):
            linked = self.codec.decode_linked(values[index])
            entries.append(linked.entry)
            if stands_alone is not None and stands_alone(linked.entry):
                return entries[::-1]
            if not self._follows(linked, values[:index]):
                return None
        return entries[::-1] if stands_alone is None and start == 0 else None

    def _remove_late(self, run: range, values: Sequence[bytes], alone: _Alone[EntryT]) -> bool:
        """Remove the last entry if it was not acknowledged, or is one of an earlier session of this id.

        The former does not follow from those before it, which are whole. The latter names its session, and stands after a hole.
        """
        *before, late = values
        if run.start and alone is None:
            # It is read after the others, so it is of the last one's session or of a later one. Without a hole, the first one
            # may be the wrong one: a late write in place of the session's own.
            first = self.look(self.key(0))
            sessions = {self.codec.decode(data).opened_by for data in (first, late) if data}
            if len(sessions - {""}) < 2:
                return False
        else:
            ends = map(self.codec.decode_linked, values[-2:])
            are_linked = all(linked.previous is not None for linked in ends)
            if not (before and are_linked) or self._whole(run.start, before, alone) is None:
                return False
            if self.last(Known(run.stop - 1, _digest(before[-1]))) is None:  # another one by now
                return False
        self.store.remove(self.key(run.stop - 1), late)
        return True

    def _follows(self, linked: Linked[EntryT], values: Sequence[bytes]) -> bool:
        """Return True if an entry follows from the values before it; the first one follows from none."""
        if linked.previous is None:  # of a version without links, as all before it must be
            return not values or self.codec.decode_linked(values[-1]).previous is None
        return linked.previous == (_digest(values[-1]) if values else b"")


def _last_run(positions: set[int]) -> range:
    """Return the last positions that follow one another without a gap."""
    start = stop = max(positions, default=-1) + 1
    while start - 1 in positions:
        start -= 1
    return range(start, stop)


def _digest(data: bytes) -> bytes:
    return hashlib.sha256(data).digest()
