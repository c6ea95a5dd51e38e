"""Sessions in a store: adopted by one engine, while another one lets them expire."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support.logs import write_log
from tests.support.memory_store import MemoryStore
from tests.support.store_engines import FailingStore
from tests.support.sums import Killed
from tests.unit.language.persistence.test_entries import ENTRIES, OPENED, turn
from tests.unit.session_log.test_journal import RemovesLate
from ts_stateful.language.persistence.entries import LogEntry, TurnEntry, session_logs
from ts_stateful.protocol.errors import SessionClosed, SessionError, SessionExpired, SessionNotFound
from ts_stateful.session_log.log import Known, Log
from ts_stateful.session_log.ownership import ClosedEntry, Doubtful, Ownership
from ts_stateful.store.backends.file import FileStore
from ts_stateful.store.base import Store, StoreUnavailable

LOG = ENTRIES[:2]
EXPIRED = ClosedEntry(at=5.0, writer="old", reason="expired")


class InterruptedStore(FailingStore):
    """A store in which another process acts before call number `when`; a write counts before and after it was done."""

    def __init__(self) -> None:
        super().__init__()
        self.when = -1
        self.meanwhile: Callable[[], None] = lambda: None

    def _check(self) -> None:
        self.when -= 1
        if self.when == -1:
            self.meanwhile()


@pytest.fixture
def store() -> InterruptedStore:
    """One with a session `s`."""
    store = InterruptedStore()
    write_log(store, "s", LOG)
    return store


def taken(store: Store, session_id: str = "s") -> list[LogEntry]:
    ownership = session_logs(store).ownership(session_id)

    def make(log: Log[LogEntry]) -> tuple[list[LogEntry], float]:
        ownership.check_open(log)
        return list(log.entries), 60.0

    return ownership.adopt(make, writer="new")


def known(store: MemoryStore, session_id: str = "s") -> Known:
    return session_logs(store).log(session_id).read().known


def end(store: Store, closed: ClosedEntry, known: Known) -> None:
    logs = session_logs(store)
    keys = [logs.log("s").key(position) for position in range(known.num_entries)]
    logs.ownership("s").end(closed, known, keys)


def has_more(store: MemoryStore, known: Known) -> bool:
    return session_logs(store).log("s").has_more(known)


def test_what_has_become_of_a_session_is_known(store: InterruptedStore) -> None:
    """Closed, expired, or never there; also where its removal was interrupted."""
    assert taken(store) == LOG
    end(store, ClosedEntry(at=5.0), known(store))
    with pytest.raises(SessionClosed):
        taken(store)
    assert store.list("adopted") == []
    end(store, EXPIRED, write_log(store, "s", [OPENED]))  # another one of that id
    with pytest.raises(SessionExpired):
        taken(store)
    write_log(store, "left", [OPENED, EXPIRED])
    with pytest.raises(SessionExpired):
        taken(store, "left")
    with pytest.raises(SessionNotFound):
        taken(store, "never")


class FullStore(InterruptedStore):
    """A store that has room for so many bytes."""

    num_bytes = 1_000_000

    def create(self, key: str, data: bytes, ttl_s: float | None = None) -> bool:
        if sum(map(len, self._values.values())) + len(data) > self.num_bytes:
            raise StoreUnavailable("the store is full", "free some space")
        return super().create(key, data, ttl_s)


@pytest.mark.parametrize(("num_bytes", "error"), [(200, SessionClosed), (0, SessionNotFound)])
def test_a_session_in_a_full_store_can_be_closed(num_bytes: int, error: type[SessionError]) -> None:
    """The note of its end takes the room that this frees; if that is too little, there is none."""
    store = FullStore()
    before = write_log(store, "s", LOG)
    store.num_bytes = num_bytes
    end(store, ClosedEntry(at=5.0), before)
    assert not store.list("sessions")
    with pytest.raises(error):
        taken(store)


def test_marks_and_notes_may_be_damaged(tmp_path: Path) -> None:
    """A loss of power left them empty. The session can be taken over, and closed."""
    store = FileStore(tmp_path / "store")
    before = write_log(store, "s", LOG)
    for name in ("ended/s@", f"adopted/s/{before.num_entries:08}@"):
        path = store.folder / name
        path.parent.mkdir(parents=True)
        path.touch()
    assert taken(store) == LOG
    end(store, EXPIRED, before)
    assert taken(store) == LOG
    end(store, ClosedEntry(at=5.0), before)
    with pytest.raises(SessionClosed):
        taken(store)


def end_again(store: MemoryStore, known: Known, doubtful: Doubtful | None = None) -> None:
    session_logs(store).ownership("s").end_again(ClosedEntry(at=5.0), known, [], doubtful)


def test_a_removal_is_tried_again(store: InterruptedStore) -> None:
    """With an entry that was written without an answer, and where only KV states are left."""
    before, late = known(store), turn(2, writer="one")
    write_log(store, "s", [late], before)
    end_again(store, before, Doubtful(before, late, 60.0))
    store.create("kv/s/piece", b"states")
    end_again(store, before)
    assert not store.list("sessions")
    assert not store.list("kv")


def test_a_removal_that_is_tried_again_leaves_others_alone(store: InterruptedStore) -> None:
    """A session that went on at another engine, and a later one of its id."""
    before = known(store)
    write_log(store, "s", [turn(2)], before)
    end_again(store, before)
    assert len(taken(store)) == len(LOG) + 1
    end(store, ClosedEntry(at=5.0), before)
    later: list[LogEntry] = [OPENED, turn(1, writer="later")]
    write_log(store, "s", later)
    end_again(store, before)
    assert taken(store) == later


@pytest.mark.parametrize("num_calls", range(8))
def test_the_removal_of_a_sequence_goes_on_where_it_failed(num_calls: int) -> None:
    """Whichever call of it the store refuses: all but the end is removed then."""
    store = InterruptedStore()
    before, keys = write_log(store, "s", LOG), store.list("sessions/s")
    ownership: Ownership[LogEntry] = Ownership(session_logs(store).log("s"), "other/s")
    closed = ClosedEntry(at=5.0)

    def fail() -> None:
        raise StoreUnavailable("the store did not answer", "wait")

    store.when, store.meanwhile = num_calls, fail
    with contextlib.suppress(StoreUnavailable):
        ownership.end(closed, before, keys)
    store.when = -1
    ownership.end_again(closed, before, keys, None)
    assert len(store.list("sessions/s")) == 1
    assert list(session_logs(store).log("s").read(lambda one: one == closed).entries) == [closed]


def test_what_cannot_be_used_is_not_adopted(store: InterruptedStore) -> None:
    """It expires where it was."""

    def refuse(log: Log[LogEntry]) -> tuple[None, None]:
        raise SessionNotFound("made by another model")

    with pytest.raises(SessionNotFound, match="another model"):
        session_logs(store).ownership("s").adopt(refuse, writer="new")
    assert session_logs(store).ownership("s").adopt(lambda log: (1, None), writer="new") == 1
    end(store, EXPIRED, known(store))
    assert not store.list("sessions")


def test_another_session_of_its_id_does_not_expire(store: InterruptedStore) -> None:
    """The engine that held the first one has seen neither its end nor the second one."""
    before = known(store)
    end(store, ClosedEntry(at=5.0), before)
    another: list[LogEntry] = [OPENED, turn(1, writer="another")]
    write_log(store, "s", another)
    end(store, EXPIRED, before)
    assert taken(store) == another
    assert has_more(store, before)


@pytest.mark.parametrize("num_entries", [0, 1])
def test_what_has_gone_on_has_not_expired(store: InterruptedStore, num_entries: int) -> None:
    """An engine that has seen less of it, or nothing, does not remove it; a close does."""
    less = write_log(MemoryStore(), "s", LOG[:num_entries])
    end(store, EXPIRED, less)
    assert taken(store) == LOG
    assert has_more(store, less)
    assert not has_more(store, known(store))
    end(store, ClosedEntry(at=5.0), less)
    assert session_logs(store).log("s").read().known == Known()


@pytest.mark.parametrize("lives_for", range(8))
@pytest.mark.parametrize("when", range(8))
def test_an_engine_that_dies_while_a_session_expires_leaves_no_doubt(
    store: InterruptedStore, when: int, lives_for: int
) -> None:
    """Another one looks for the session a few calls before: it has adopted it, or the session has ended for all."""
    before = known(store)
    adopted: list[list[LogEntry]] = []

    def adopt() -> None:
        with contextlib.suppress(SessionError):
            adopted.append(taken(store))
        store.when, store.meanwhile = lives_for, die

    def die() -> None:
        raise Killed

    store.when, store.meanwhile = when, adopt
    with contextlib.suppress(Killed):
        end(store, EXPIRED, before)
    store.when = -1
    if adopted:
        assert session_logs(store).log("s").append(before, ENTRIES[2])
    else:
        with pytest.raises(SessionExpired):
            taken(store)


@pytest.mark.parametrize("when", range(16))
@pytest.mark.parametrize("interrupted", ["adopt", "end"])
def test_one_of_two_sees_the_other(store: InterruptedStore, interrupted: str, when: int) -> None:
    """Whenever one adopts a session and another one lets it expire: it is adopted and there, or has expired and is not."""
    adopted: list[list[LogEntry]] = []
    over: list[SessionError] = []

    def take() -> None:
        try:
            adopted.append(taken(store))
        except SessionError as error:
            over.append(error)

    before = known(store)

    def expire() -> None:
        end(store, EXPIRED, before)

    both: dict[str, Callable[[], None]] = {"adopt": take, "end": expire}
    inner = both.pop("end" if interrupted == "adopt" else "adopt")
    store.when, store.meanwhile = when, inner
    both.popitem()[1]()
    if store.when >= 0:  # the first one was done before
        store.when = -1
        inner()
    assert len(adopted) + len(over) == 1
    if adopted:
        assert session_logs(store).log("s").read().entries == adopted[0] == LOG
        assert session_logs(store).log("s").append(before, ENTRIES[2])
    else:
        assert isinstance(over[0], SessionExpired)
        assert not session_logs(store).log("s").read().entries


@pytest.mark.parametrize("when", range(12))
def test_a_session_that_begins_again_is_not_removed_with_the_old_one(
    store: InterruptedStore, when: int
) -> None:
    """Its id may begin again after the last entry of one that expired, whenever that is."""
    log = session_logs(store).log("s")
    ownership: Ownership[LogEntry] = Ownership(log, "other/s")
    before = log.read()
    begun: list[Known] = []

    def begin() -> None:
        found = log.read(lambda entry: not isinstance(entry, TurnEntry))
        if not found.entries or isinstance(found.entries[-1], ClosedEntry):
            after = log.append(found.known, OPENED)
            begun.extend([] if after is None else [after])

    store.when, store.meanwhile = when, begin
    ownership.end(EXPIRED, before.known, before.keys)
    store.when = -1
    entries = log.read(lambda entry: not isinstance(entry, TurnEntry)).entries
    assert list(entries) == ([OPENED] if begun else [EXPIRED])


def test_a_hole_at_the_end_is_no_last_entry(store: InterruptedStore) -> None:
    """Another engine may have gone on there, so nothing is removed."""
    end(store, EXPIRED, Known(known(store).num_entries + 1))
    assert taken(store) == LOG


def take_back(store: MemoryStore, entry: TurnEntry, before: Known) -> None:
    session_logs(store).ownership("s").take_back(Doubtful(before, entry, 60.0))


def test_a_write_that_failed_is_taken_back(store: InterruptedStore) -> None:
    """If the store has it all the same; an entry of another process stays."""
    before, late = known(store), turn(2, writer="one")
    write_log(store, "s", [late], before)
    take_back(store, turn(2, writer="other"), before)
    assert list(session_logs(store).log("s").read().entries) == [*LOG, late]
    take_back(store, late, before)
    take_back(store, late, before)
    assert taken(store) == LOG


def test_what_will_be_removed_is_not_adopted() -> None:
    """The removal may come at any time, or never."""
    store = RemovesLate()
    before = write_log(store, "s", LOG)
    failed, other = turn(2, writer="one"), turn(2, writer="other")
    write_log(store, "s", [failed], before)
    with pytest.raises(StoreUnavailable):
        take_back(store, failed, before)
    assert taken(store) == LOG
    after = write_log(store, "s", [other], before)
    store.late[0]()
    take_back(store, failed, before)
    assert taken(store) == [*LOG, other]
    assert known(store) == after


def test_what_is_written_after_it_was_taken_back_is_not_adopted() -> None:
    """The store carries out a write late: its client has an error already."""
    store = MemoryStore()
    before, late = write_log(store, "s", LOG), turn(2, writer="one")
    take_back(store, late, before)
    after = write_log(store, "s", [late], before)
    assert taken(store) == LOG
    assert not has_more(store, before)
    take_back(store, late, before)
    write_log(store, "s", [late], before)
    assert session_logs(store).ownership("s").frees(before)
    assert write_log(store, "s", [turn(2, writer="other")], before) != after


def left_digest() -> tuple[RemovesLate, Known, TurnEntry]:
    """Return a store that has the digest of an entry without the entry: its server died, or got no answer."""
    store = RemovesLate()
    before, failed = write_log(store, "s", LOG), turn(2, writer="one")
    write_log(store, "s", [failed], before)
    with pytest.raises(StoreUnavailable):
        take_back(store, failed, before)
    store.late[0]()
    return store, before, failed


def test_the_digest_of_an_entry_that_was_replaced_is_no_mark() -> None:
    """An engine adopts the session all the same, and no other one takes that from it."""
    store, before, failed = left_digest()
    other = turn(2, writer="other")
    after = write_log(store, "s", [other], before)
    assert taken(store) == [*LOG, other]
    take_back(store, failed, before)
    take_back(store, other, before)
    end(store, EXPIRED, after)
    assert taken(store) == [*LOG, other]


def test_an_entry_in_the_place_of_one_that_was_taken_back_is_removed() -> None:
    """With its session, or because its write failed, too."""
    store, before, _ = left_digest()
    other = turn(2, writer="other")
    write_log(store, "s", [other], before)
    take_back(store, other, before)
    assert known(store) == before
    store, before, _ = left_digest()
    end(store, EXPIRED, write_log(store, "s", [other], before))
    assert not store.list("sessions")


@pytest.mark.parametrize("adopts_first", [False, True])
@pytest.mark.parametrize("when", range(9))
def test_what_an_engine_has_adopted_is_not_taken_back(
    store: InterruptedStore, when: int, adopts_first: bool
) -> None:
    """At whatever moment it does so, the log is what it has adopted."""
    before, late = known(store), turn(2, writer="one")
    write_log(store, "s", [late], before)
    adopted: list[list[LogEntry]] = []

    def adopt() -> None:
        adopted.append(taken(store))

    def retract() -> None:
        take_back(store, late, before)

    one, other = (adopt, retract) if adopts_first else (retract, adopt)
    store.when, store.meanwhile = when, other
    one()
    store.when = -1
    left = list(session_logs(store).log("s").read().entries)
    assert all(entries == left for entries in adopted)
