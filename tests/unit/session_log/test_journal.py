"""Writes of sessions to their logs: their order, and what a failed one leaves."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest

from tests.support.journals import make_journal, written
from tests.support.store_engines import FailingStore
from ts_stateful.protocol.errors import SessionExists, SessionMoved, StatefulError, StoreFailed
from ts_stateful.session_log.codec import Codec, Logged
from ts_stateful.session_log.journal import LogPosition, Write, Written
from ts_stateful.session_log.ownership import ClosedEntry, Doubtful, SessionLogs
from ts_stateful.store.base import StoreUnavailable


class Entry(Logged, frozen=True, tag="entry"):
    """An entry with nothing but a number and the name of its writer."""

    number: int


def make_logs(store: FailingStore) -> SessionLogs[Any]:
    return SessionLogs(store, Codec(Entry | ClosedEntry), "logs", "adopted", "ended", "cached")


@pytest.fixture
def store() -> FailingStore:
    """An empty one."""
    return FailingStore()


@pytest.fixture
def logs(store: FailingStore) -> SessionLogs[Any]:
    """Logs in the store."""
    return make_logs(store)


def entry(number: int, writer: str = "own", **fields: Any) -> Write:
    made = Written(Entry(number, writer=writer))
    return Write(lambda position: made, 60.0, **fields)


def numbers(logs: SessionLogs[Any]) -> list[int]:
    return [entry.number for entry in logs.log("a").read().entries]


def test_a_write_that_failed_is_undone(logs: SessionLogs[Any], store: FailingStore) -> None:
    """With the policy `required`; the next write takes its position."""
    journal, position = make_journal(logs), LogPosition()
    assert written(journal, position, entry(0, creates_session=True)) is None
    store.fails = True
    assert isinstance(written(journal, position, entry(1)), StoreFailed)
    assert position.is_saved
    assert position.doubtful == Doubtful(position.known, Entry(1, writer="own"), 60.0)
    store.fails = False
    assert written(journal, position, entry(2)) is None
    assert numbers(logs) == [0, 2]
    assert position.doubtful is None


class RemovesLate(FailingStore):
    """A store that does not answer removals in time, and carries them out when it is asked to."""

    def __init__(self) -> None:
        super().__init__()
        self.late: list[Callable[[], None]] = []

    def remove(self, key: str, data: bytes) -> None:
        """Do so later, the first time."""
        if self.late:
            super().remove(key, data)
            return
        self.late.append(partial(super().remove, key, data))
        raise StoreUnavailable("the store did not answer", "wait")


def test_a_late_removal_spares_what_was_written_since() -> None:
    """An entry whose write failed is taken back twice: the first removal arrives when its place has another entry."""
    store = RemovesLate()
    logs = make_logs(store)
    journal, position = make_journal(logs), LogPosition()
    assert written(journal, position, entry(0, creates_session=True)) is None
    store.num_lost = 1
    assert isinstance(written(journal, position, entry(1)), StoreFailed)
    assert written(journal, position, entry(2)) is None
    store.late[0]()
    assert written(journal, position, entry(3)) is None
    assert numbers(logs) == [0, 2, 3]


def test_a_first_entry_that_is_taken_back_late_holds_no_id() -> None:
    """Another engine begins a session of this id, and another write of the first one is refused."""
    store = RemovesLate()
    logs = make_logs(store)
    first, second = LogPosition(), LogPosition()
    store.num_lost = 1
    lost = written(make_journal(logs), first, entry(0, creates_session=True))
    assert isinstance(lost, StoreFailed)
    begun = entry(0, writer="other", creates_session=True)
    assert written(make_journal(logs), second, begun) is None
    store.late[0]()
    assert logs.log("a").read().entries == [Entry(0, writer="other")]
    again = written(make_journal(logs), first, entry(1, creates_session=True))
    assert isinstance(again, SessionExists)


def test_with_best_effort_it_is_written_with_the_next_one(
    logs: SessionLogs[Any], store: FailingStore
) -> None:
    """In order."""
    journal, position = make_journal(logs, "best_effort"), LogPosition()
    assert written(journal, position, entry(0, creates_session=True)) is None
    store.fails = True
    for number in (1, 2):
        assert written(journal, position, entry(number)) is None
    unsaved = position.is_saved
    store.fails = False
    assert written(journal, position, entry(3)) is None
    assert (unsaved, position.is_saved) == (False, True)
    assert numbers(logs) == [0, 1, 2, 3]


def test_what_stands_alone_replaces_all_before_it(
    logs: SessionLogs[Any], store: FailingStore
) -> None:
    """A store that is down for long costs no memory: at most one entry before it is still to be written."""
    journal, position = make_journal(logs, "best_effort"), LogPosition()
    assert written(journal, position, entry(0)) is None
    store.fails = True
    for number in range(1, 100):
        assert written(journal, position, entry(number, stand_alone=True)) is None
        assert len(position.unmade) + (position.unwritten is not None) <= 2
    store.fails = False
    assert written(journal, position, entry(100, stand_alone=True)) is None
    assert store.list("logs/a") == position.keys == [logs.log("a").key(2)]


def test_values_that_an_entry_names_go_with_it(logs: SessionLogs[Any], store: FailingStore) -> None:
    """Not if a later entry names the same ones."""

    def naming(*keys: str) -> Write:
        def make(position: int) -> Written:
            for key in keys:
                store.create(key, b"value", 60.0)
            return Written(Entry(position), keys)

        return Write(make, 60.0, stand_alone=True)

    journal, position = make_journal(logs), LogPosition()
    for write in (naming("logs/a/x", "logs/a/y"), naming("logs/a/y")):
        assert written(journal, position, write) is None
    assert store.list("logs/a") == [logs.log("a").key(1), "logs/a/y"]
    assert sorted(position.keys) == store.list("logs/a")


def test_an_entry_of_another_engine_ends_the_writes(logs: SessionLogs[Any]) -> None:
    """The session moved, or its id is taken; nothing is written any more."""
    first, second = LogPosition(), LogPosition()
    journal = make_journal(logs)
    assert written(journal, first, entry(0, creates_session=True)) is None
    taken = written(journal, second, entry(0, writer="other", creates_session=True))
    assert isinstance(taken, SessionExists)
    adopted = LogPosition(first.known, list(first.keys))
    assert written(journal, adopted, entry(1, writer="other")) is None
    for number in (2, 3):
        assert isinstance(written(journal, first, entry(number)), SessionMoved)
    assert numbers(logs) == [0, 1]


@pytest.mark.parametrize("reason", ["closed", "expired"])
def test_the_end_removes_a_session(
    logs: SessionLogs[Any], store: FailingStore, reason: Any
) -> None:
    """Its id is remembered; a store that fails is reported."""
    journal, position, outcomes = make_journal(logs), LogPosition(), list[Any]()
    assert written(journal, position, entry(0, creates_session=True)) is None
    store.fails = True
    journal.end("a", position, ClosedEntry(1.0, reason), outcomes.append)
    store.fails = False
    journal.end("a", position, ClosedEntry(1.0, reason), outcomes.append)
    assert isinstance(outcomes[0], Exception)
    assert outcomes[1] is None
    assert store.list("logs") == []
    assert store.list("ended") == ["ended/a"]


def test_a_session_that_went_on_elsewhere_is_seen(
    logs: SessionLogs[Any], store: FailingStore
) -> None:
    """Only if the store has all that was committed here: what it lacks would be forgotten."""
    journal, position = make_journal(logs), LogPosition()
    assert journal.look_after("a", position) is None
    assert written(journal, position, entry(0, creates_session=True)) is None
    look = journal.look_after("a", position)
    assert look is not None
    assert not look()
    other = LogPosition(position.known)
    assert written(journal, other, entry(1, writer="other")) is None
    assert look()
    store.delete("logs/a")
    assert look()
    store.fails = True
    assert isinstance(written(journal, position, entry(1)), StatefulError)
    assert journal.look_after("a", position) is not None  # that entry was not committed
    keeping = make_journal(logs, "best_effort")
    assert written(keeping, position, entry(1)) is None
    assert keeping.look_after("a", position) is None
    assert not journal.when_written(position, pytest.fail)
