"""Adding to the log of a session, and reading it."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

import msgspec
import pytest
from msgspec import structs

from tests.support.logs import write_log
from tests.support.memory_store import MemoryStore
from tests.support.store_engines import FailingStore
from tests.unit.language.persistence.test_entries import ENTRIES, OPENED, turn
from ts_stateful.language.persistence.entries import LogEntry, TurnEntry, session_logs
from ts_stateful.session_log.log import Known, Log
from ts_stateful.session_log.ownership import ClosedEntry
from ts_stateful.store.backends.sealed import SealedStore
from ts_stateful.store.base import Store, StoreCorrupt, StoreUnavailable


def read(store: Store) -> tuple[list[LogEntry], Known]:
    log = session_logs(store).log("a").read()
    return list(log.entries), log.known


def append(store: Store, known: Known, entry: LogEntry) -> Known | None:
    return session_logs(store).log("a").append(known, entry)


class ListsLate(MemoryStore):
    """Another process adds two entries while the first listing is made, which sees only the second of them."""

    def __init__(self) -> None:
        super().__init__()
        self.num_listings = 0

    def list(self, prefix: str) -> Sequence[str]:
        """Misses entry 1 the first time."""
        self.num_listings += 1
        keys = super().list(prefix)
        return [key for key in keys if self.num_listings > 1 or not key.endswith("1")]


class RemovedMeanwhile(MemoryStore):
    """Another process removes a session between the listing of its entries and their reading."""

    def get_many(self, keys: Sequence[str]) -> Sequence[bytes | None]:
        """Nothing is there any more."""
        self.delete("sessions/a")
        return super().get_many(keys)


def test_a_log_that_is_removed_while_it_is_read_is_gone() -> None:
    """As if it had been read a moment later."""
    store = RemovedMeanwhile()
    write_log(store, "a", ENTRIES)
    assert read(store) == ([], Known())


def test_a_log_is_read_as_it_was_written() -> None:
    """In order; a session that does not exist has none."""
    store = MemoryStore()
    known = write_log(store, "a", ENTRIES)
    assert read(store) == (ENTRIES, known)
    assert session_logs(store).log("b").read().known == Known()
    store.delete("sessions/a")
    assert read(store) == ([], Known())


def test_a_position_has_one_owner() -> None:
    """A second process with another entry finds that the session has moved."""
    store = MemoryStore()
    known = write_log(store, "a", [OPENED])
    assert append(store, known, turn(1, writer="one"))
    assert not append(store, known, turn(1, writer="other"))
    assert read(store)[0] == [OPENED, turn(1, writer="one")]


def test_a_server_with_another_key_has_the_session() -> None:
    """Its entry cannot be read here, and is no reason to send the turn again. Nothing follows it."""
    inner = MemoryStore()
    old, new = SealedStore(inner, [bytes(32)]), SealedStore(inner, [b"n" * 32, bytes(32)])
    known = write_log(old, "a", [OPENED])
    after = write_log(new, "a", [turn(1)], known)
    assert append(old, known, turn(1)) is None
    assert session_logs(old).log("a").has_more(known)
    assert append(old, after, turn(2)) is None
    assert read(new) == ([OPENED, turn(1)], after)


@pytest.mark.parametrize("again", [False, True], ids=["ended", "another one"])
def test_nothing_is_written_after_a_session_that_has_ended(*, again: bool) -> None:
    """Also where its id is that of another one by now: neither has an entry of the other."""
    store = MemoryStore()
    known = write_log(store, "a", [OPENED, turn(1)])
    store.delete("sessions/a")
    entries: list[LogEntry] = [OPENED, turn(1, writer="another")] if again else []
    write_log(store, "a", entries)
    assert append(store, known, turn(2)) is None
    assert read(store)[0] == entries
    assert len(store.list("sessions/a")) == len(entries)


def test_an_answer_that_was_lost_is_made_good() -> None:
    """The entry is there, and the second attempt finds that it is its own."""
    store = FailingStore()
    store.num_lost = 1
    with pytest.raises(StoreUnavailable):
        append(store, Known(), OPENED)
    assert append(store, Known(), OPENED)
    assert not append(store, Known(), ClosedEntry(at=1.0))


def test_a_log_with_a_gap_is_not_read() -> None:
    """An entry in its middle is missing; what is left after a missing first one is no session."""
    store = MemoryStore()
    write_log(store, "a", ENTRIES)
    store.delete("sessions/a/00000002")
    with pytest.raises(StoreCorrupt, match="gaps"):
        read(store)
    store.delete("sessions/a/00000000")
    assert read(store) == ([], Known())


def test_a_log_that_grows_while_it_is_listed_has_no_gap() -> None:
    """The second listing has what the first one missed."""
    store = ListsLate()
    known = write_log(store, "a", ENTRIES[:3])
    assert read(store) == (ENTRIES[:3], known)


def step(number: int, *, alone: bool = False) -> LogEntry:
    """An entry that needs those before it unless it is `alone`."""
    return turn(number, keep=0 if alone else 1)


def alone(entry: LogEntry) -> bool:
    return isinstance(entry, TurnEntry) and not entry.keep


def test_a_log_is_read_from_the_last_entry_that_stands_alone() -> None:
    """Positions before it may have been dropped, the first ones first."""
    store = MemoryStore()
    entries = [step(1, alone=True), step(2), step(3, alone=True), step(4)]
    known = write_log(store, "a", entries)
    log = session_logs(store).log("a")
    keys = [log.key(position) for position in range(4)]
    store.create("sessions/a/other", b"")
    assert log.read(alone) == Log(entries[2:], known, [*keys, "sessions/a/other"])
    for dropped in keys[:2]:
        store.delete(dropped)
        assert log.read(alone).entries == entries[2:]
    assert append(store, known, step(5))
    store.delete(keys[2])
    with pytest.raises(StoreCorrupt, match="gaps"):
        log.read(alone)


def old(entry: LogEntry) -> bytes:
    """Return an entry as version 2 wrote it."""
    data = msgspec.msgpack.encode(entry)
    return msgspec.msgpack.encode((2, hashlib.sha256(data).digest(), data))


def test_an_entry_of_version_2_may_follow_a_hole() -> None:
    """Earlier programs left one where a write had failed; the entry counts if it stands alone."""
    store = MemoryStore()
    write_log(store, "a", [step(1, alone=True)])
    store.create("sessions/a/00000002", old(step(3, alone=True)))
    known = session_logs(store).log("a").read(alone).known
    after = append(store, known, step(4))
    entries = session_logs(store).log("a").read(alone)
    assert (entries.entries, entries.known) == ([step(3, alone=True), step(4)], after)


LIVES: list[list[LogEntry]] = [
    [structs.replace(entry, opened_by=one) for entry in (OPENED, turn(1), turn(2), turn(3))]
    for one in ("earlier", "later")
]


def remove(store: MemoryStore) -> list[tuple[str, bytes]]:
    """Remove a session; return its entries at rest, as an attacker keeps them."""
    keys = store.list("sessions/a")
    kept = [(key, data) for key in keys if (data := store.get(key)) is not None]
    store.delete("sessions/a")
    return kept


@pytest.mark.parametrize("is_sealed", [False, True])
@pytest.mark.parametrize("position", [0, 1])
def test_an_entry_of_an_earlier_life_is_refused(position: int, is_sealed: bool) -> None:
    """An id was used again, and an old entry is put back at its old place, over a new one that others follow."""
    inner = MemoryStore()
    store: Store = SealedStore(inner, [bytes(32)]) if is_sealed else inner
    write_log(store, "a", LIVES[0])
    key, data = remove(inner)[position]
    write_log(store, "a", LIVES[1][:3])
    assert read(store)[0] == LIVES[1][:3]
    inner.delete(key)
    inner.create(key, data)
    with pytest.raises(StoreCorrupt, match="entries of an earlier session"):
        read(store)


def test_an_entry_after_a_hole_is_refused_if_it_names_no_session() -> None:
    """It is one of an earlier program, and the log may have lost those before it."""
    store = MemoryStore()
    write_log(store, "a", LIVES[1][:2])
    write_log(store, "a", [structs.replace(LIVES[0][3], opened_by="")], Known(3))
    with pytest.raises(StoreCorrupt, match="gaps"):
        read(store)


@pytest.mark.parametrize("position", [2, 3])
def test_an_entry_that_comes_too_late_is_removed(position: int) -> None:
    """A server wrote it when the id was used again already, and died. It does not follow from those before it."""
    store = MemoryStore()
    write_log(store, "a", LIVES[0])
    key, data = remove(store)[position]
    known = write_log(store, "a", LIVES[1][:position])
    store.create(key, data)
    assert read(store) == (LIVES[1][:position], known)
    assert append(store, known, LIVES[1][position])


@pytest.mark.parametrize("position", [0, 1, 2, 3, 4])
def test_an_entry_in_the_place_of_a_dropped_one_does_not_count(position: int) -> None:
    """A server wrote it that lagged, and died; also if it stands alone, and right before those that count."""
    store = MemoryStore()
    entries = [*(step(number) for number in range(1, 6)), step(6, alone=True), step(7)]
    known = write_log(store, "a", entries)
    log = session_logs(store).log("a")
    for dropped in range(5):
        store.delete(log.key(dropped))
    late = log.codec.encode(step(1, alone=True), bytes(32) if position else b"")
    store.create(log.key(position), late)
    assert log.read(alone).entries == entries[-2:]
    assert append(store, known, step(8))


def test_a_first_entry_does_not_count_before_others() -> None:
    """A server found no sequence of that id, and wrote after others had dropped its beginning."""
    store = MemoryStore()
    known = write_log(store, "a", [step(1, alone=True), step(2, alone=True)])
    log = session_logs(store).log("a")
    store.delete(log.key(0))
    assert log.append(Known(), step(1, alone=True), drops=True) is None
    assert log.read(alone).known == known


def test_an_entry_without_a_link_is_refused_after_one_that_has_it() -> None:
    """Else those of earlier programs could be put anywhere."""
    store = MemoryStore()
    write_log(store, "a", [OPENED])
    store.create("sessions/a/00000001", old(turn(1)))
    with pytest.raises(StoreCorrupt, match="entries of an earlier session"):
        read(store)


def test_a_log_of_version_2_goes_on() -> None:
    """Its entries are read, and the next one is linked to the last of them."""
    store = MemoryStore()
    store.create("sessions/a/00000000", old(OPENED))
    store.create("sessions/a/00000001", old(turn(1)))
    known = write_log(store, "a", [turn(2)], read(store)[1])
    assert read(store) == ([OPENED, turn(1), turn(2)], known)
    store.delete("sessions/a/00000001")
    store.create("sessions/a/00000001", old(turn(1, writer="earlier")))
    with pytest.raises(StoreCorrupt, match="entries of an earlier session"):
        read(store)
