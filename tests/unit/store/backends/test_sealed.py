"""A store that seals what it is given."""

from __future__ import annotations

import base64

import pytest

from tests.support.store_behaviour import StoreBehaviour
from tests.unit.session_log.test_records import OPENED
from ts_stateful.config.schema import ConfigError
from ts_stateful.session_log.log import Known, append, read
from ts_stateful.store.backends.memory import MemoryStore
from ts_stateful.store.backends.sealed import SealedStore, read_keys
from ts_stateful.store.base import Store, StoreCorrupt

OLD, NEW = bytes(32), bytes(range(32))


class TestSealedStore(StoreBehaviour):
    """What every store does."""

    @pytest.fixture
    def store(self) -> Store:
        """An empty one."""
        return SealedStore(MemoryStore(), [NEW])


@pytest.fixture
def behind() -> MemoryStore:
    """What is behind the sealed store."""
    return MemoryStore()


def test_nothing_can_be_read_behind_it(behind: MemoryStore) -> None:
    """And the same value never looks the same."""
    store = SealedStore(behind, [NEW])
    for key in ("a", "b"):
        assert store.create(key, b"plain text")
    first, second = behind.get("a"), behind.get("b")
    assert first is not None
    assert second is not None
    assert b"plain" not in first + second
    assert first[20:] != second[20:]


def test_keys_can_be_changed(behind: MemoryStore) -> None:
    """An old key opens what it sealed; without it the message says which key is missing."""
    SealedStore(behind, [OLD]).create("a", b"old")
    both = SealedStore(behind, [NEW, OLD])
    both.create("b", b"new")
    assert [both.get(key) for key in "ab"] == [b"old", b"new"]
    new = SealedStore(behind, [NEW])
    assert new.get("b") == b"new"
    with pytest.raises(StoreCorrupt, match="add the old key"):
        new.get("a")


def test_a_value_cannot_be_moved(behind: MemoryStore) -> None:
    """Not even to another position of the same session."""
    store = SealedStore(behind, [NEW])
    store.create("sessions/a/00000000", b"x")
    sealed = behind.get("sessions/a/00000000")
    assert sealed is not None
    behind.create("sessions/b/00000000", sealed)
    with pytest.raises(StoreCorrupt, match="moved"):
        store.get("sessions/b/00000000")


def test_no_change_passes(behind: MemoryStore) -> None:
    """Every flipped byte and every truncation is found."""
    store = SealedStore(behind, [NEW])
    store.create("a", b"value")
    sealed = behind.get("a")
    assert sealed is not None
    flipped = [bytes([*sealed[:n], sealed[n] ^ 1, *sealed[n + 1 :]]) for n in range(len(sealed))]
    for changed in (*flipped, *(sealed[:n] for n in range(len(sealed))), sealed + b"x"):
        behind.delete("a")
        behind.create("a", changed)
        with pytest.raises(StoreCorrupt):
            store.get("a")


def test_an_answer_that_was_lost_is_made_good_behind_a_seal(behind: MemoryStore) -> None:
    """The same entry is sealed to other bytes each time; what counts is the entry."""
    store = SealedStore(behind, [NEW])
    assert append(store, "a", Known(), OPENED)
    assert append(store, "a", Known(), OPENED)
    assert read(store, "a").entries == [OPENED]


def test_keys_come_from_the_environment() -> None:
    """One or several, of 32 bytes in base64."""
    new, old = (base64.b64encode(key).decode() for key in (NEW, OLD))
    assert read_keys("KEY", {"KEY": new}) == [NEW]
    assert read_keys("KEY", {"KEY": f" {new}, {old}\n"}) == [NEW, OLD]


@pytest.mark.parametrize("value", ["", ",", "secret", "c2VjcmV0", f"{'A' * 43}=,c2VjcmV0", "ä"])
def test_what_is_no_key_is_refused(value: str) -> None:
    """With how to make one, and without repeating it."""
    with pytest.raises(ConfigError, match="openssl rand -base64 32") as caught:
        read_keys("KEY", {"KEY": value})
    assert not value.strip(",") or value not in str(caught.value)
