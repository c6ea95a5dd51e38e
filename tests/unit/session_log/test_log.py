"""Adding to the log of a session, and reading it."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from tests.support.logs import write_log
from tests.unit.session_log.test_records import ENTRIES, OPENED, turn
from ts_stateful.session_log.log import Known, Log, append, forget, read
from ts_stateful.session_log.records import Closed, Entry
from ts_stateful.store.backends.memory import MemoryStore
from ts_stateful.store.base import StoreCorrupt, StoreUnavailable

NOTHING = Log([], Known())


class LosesAnswers(MemoryStore):
    """Writes, and then does not say so."""

    def create(self, key: str, data: bytes, ttl_s: float | None = None) -> bool:
        """Fails the first time that it succeeds."""
        if super().create(key, data, ttl_s):
            raise StoreUnavailable("the answer was lost", "try again")
        return False


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
        forget(self, "a")
        return super().get_many(keys)


def test_a_log_that_is_removed_while_it_is_read_is_gone() -> None:
    """As if it had been read a moment later."""
    store = RemovedMeanwhile()
    write_log(store, "a", ENTRIES)
    assert read(store, "a") == NOTHING


def test_a_log_is_read_as_it_was_written() -> None:
    """In order; a session that does not exist has none."""
    store = MemoryStore()
    known = write_log(store, "a", ENTRIES)
    assert read(store, "a") == (ENTRIES, known)
    assert read(store, "b") == NOTHING
    forget(store, "a")
    assert read(store, "a") == NOTHING


def test_a_position_has_one_owner() -> None:
    """Who comes second with another entry learns that the session has moved."""
    store = MemoryStore()
    known = write_log(store, "a", [OPENED])
    assert append(store, "a", known, turn(1, writer="one"))
    assert not append(store, "a", known, turn(1, writer="other"))
    assert read(store, "a").entries == [OPENED, turn(1, writer="one")]


@pytest.mark.parametrize("anew", [False, True], ids=["ended", "another one"])
def test_nothing_is_written_behind_a_session_that_has_ended(*, anew: bool) -> None:
    """Also where its id is that of another one by now: neither has an entry of the other."""
    store = MemoryStore()
    known = write_log(store, "a", [OPENED, turn(1)])
    forget(store, "a")
    entries: list[Entry] = [OPENED, turn(1, writer="another")] if anew else []
    write_log(store, "a", entries)
    assert append(store, "a", known, turn(2)) is None
    assert read(store, "a").entries == entries
    assert len(store.list("sessions/a")) == len(entries)


def test_an_answer_that_was_lost_is_made_good() -> None:
    """The entry is there, and the second attempt finds that it is its own."""
    store = LosesAnswers()
    with pytest.raises(StoreUnavailable):
        append(store, "a", Known(), OPENED)
    assert append(store, "a", Known(), OPENED)
    assert not append(store, "a", Known(), Closed(at=1.0))


def test_a_log_with_a_gap_is_not_read() -> None:
    """An entry in its middle is missing; what is left behind a missing first one is no session."""
    store = MemoryStore()
    write_log(store, "a", ENTRIES)
    store.delete("sessions/a/00000002")
    with pytest.raises(StoreCorrupt, match="gaps"):
        read(store, "a")
    store.delete("sessions/a/00000000")
    assert read(store, "a") == NOTHING


def test_a_log_that_grows_while_it_is_listed_has_no_gap() -> None:
    """The second listing has what the first one missed."""
    store = ListsLate()
    known = write_log(store, "a", ENTRIES[:3])
    assert read(store, "a") == (ENTRIES[:3], known)
