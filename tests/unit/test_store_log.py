"""Adding to the log of a session, and reading it."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from tests.unit.test_store_records import ENTRIES, OPENED, turn
from ts_stateful.store.base import StoreCorrupt, StoreUnavailable
from ts_stateful.store.log import append, forget, read
from ts_stateful.store.memory import MemoryStore
from ts_stateful.store.records import Closed


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
    for position, entry in enumerate(ENTRIES):
        assert append(store, "a", position, entry)
    assert read(store, "a") == []


def test_a_log_is_read_as_it_was_written() -> None:
    """In order; a session that does not exist has none."""
    store = MemoryStore()
    for position, entry in enumerate(ENTRIES):
        assert append(store, "a", position, entry)
    assert read(store, "a") == ENTRIES
    assert read(store, "b") == []
    forget(store, "a")
    assert read(store, "a") == []


def test_a_position_has_one_owner() -> None:
    """Who comes second with another entry learns that the session has moved."""
    store = MemoryStore()
    assert append(store, "a", 0, OPENED)
    assert append(store, "a", 1, turn(1, writer="one"))
    assert not append(store, "a", 1, turn(1, writer="other"))
    assert read(store, "a") == [OPENED, turn(1, writer="one")]


def test_an_answer_that_was_lost_is_made_good() -> None:
    """The entry is there, and the second attempt finds that it is its own."""
    store = LosesAnswers()
    with pytest.raises(StoreUnavailable):
        append(store, "a", 0, OPENED)
    assert append(store, "a", 0, OPENED)
    assert not append(store, "a", 0, Closed(at=1.0))


def test_a_log_with_a_gap_is_not_read() -> None:
    """An entry in its middle is missing; what is left behind a missing first one is no session."""
    store = MemoryStore()
    for position in (0, 1, 3):
        append(store, "a", position, ENTRIES[position])
    with pytest.raises(StoreCorrupt, match="gaps"):
        read(store, "a")
    store.delete("sessions/a/00000000")
    assert read(store, "a") == []


def test_a_log_that_grows_while_it_is_listed_has_no_gap() -> None:
    """The second listing has what the first one missed."""
    store = ListsLate()
    for position in range(3):
        append(store, "a", position, ENTRIES[position])
    assert read(store, "a") == ENTRIES[:3]
