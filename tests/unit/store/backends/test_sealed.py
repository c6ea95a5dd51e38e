"""A store that encrypts its values."""

from __future__ import annotations

import base64

import pytest

from tests.support.memory_store import MemoryStore
from tests.support.store_behaviour import StoreBehaviour
from tests.unit.language.persistence.test_entries import OPENED
from ts_stateful.config.schema import ConfigError
from ts_stateful.language.persistence.entries import session_logs
from ts_stateful.session_log.log import Known
from ts_stateful.store.backends.sealed import SealedStore, read_keys
from ts_stateful.store.base import Store, StoreCorrupt

OLD, NEW = bytes(32), bytes(range(32))


class TestSealedStore(StoreBehaviour):
    """The contract of every store."""

    @pytest.fixture
    def store(self) -> Store:
        """Return an empty store."""
        return SealedStore(MemoryStore(), [NEW])


@pytest.fixture
def inner() -> MemoryStore:
    """Return the store for the sealed values."""
    return MemoryStore()


def test_the_inner_store_has_no_plain_text(inner: MemoryStore) -> None:
    """Equal values have different ciphertexts."""
    store = SealedStore(inner, [NEW])
    for key in ("a", "b"):
        assert store.create(key, b"plain text")
    first, second = inner.get("a"), inner.get("b")
    assert first is not None
    assert second is not None
    assert b"plain" not in first + second
    assert first[20:] != second[20:]


def test_keys_can_be_changed(inner: MemoryStore) -> None:
    """An old key opens its values. Without it the error asks for the old key."""
    SealedStore(inner, [OLD]).create("a", b"old")
    both = SealedStore(inner, [NEW, OLD])
    both.create("b", b"new")
    assert [both.get(key) for key in "ab"] == [b"old", b"new"]
    new = SealedStore(inner, [NEW])
    assert new.get("b") == b"new"
    with pytest.raises(StoreCorrupt, match="add the old key"):
        new.get("a")


def test_a_value_cannot_be_moved(inner: MemoryStore) -> None:
    """Not even to another position of the same session."""
    store = SealedStore(inner, [NEW])
    store.create("sessions/a/00000000", b"x")
    sealed = inner.get("sessions/a/00000000")
    assert sealed is not None
    inner.create("sessions/b/00000000", sealed)
    with pytest.raises(StoreCorrupt, match="moved"):
        store.get("sessions/b/00000000")


def test_every_change_is_detected(inner: MemoryStore) -> None:
    """Every flipped byte and every truncation is detected."""
    store = SealedStore(inner, [NEW])
    store.create("a", b"value")
    sealed = inner.get("a")
    assert sealed is not None
    flipped = [bytes([*sealed[:n], sealed[n] ^ 1, *sealed[n + 1 :]]) for n in range(len(sealed))]
    for changed in (*flipped, *(sealed[:n] for n in range(len(sealed))), sealed + b"x"):
        inner.delete("a")
        inner.create("a", changed)
        with pytest.raises(StoreCorrupt):
            store.get("a")


def test_an_append_can_be_repeated(inner: MemoryStore) -> None:
    """The same entry has other sealed bytes each time, and is recognised."""
    store = SealedStore(inner, [NEW])
    assert session_logs(store).log("a").append(Known(), OPENED)
    assert session_logs(store).log("a").append(Known(), OPENED)
    assert session_logs(store).log("a").read().entries == [OPENED]


def test_keys_come_from_the_environment() -> None:
    """One or several, of 32 bytes in base64."""
    new, old = (base64.b64encode(key).decode() for key in (NEW, OLD))
    assert read_keys("KEY", {"KEY": new}) == [NEW]
    assert read_keys("KEY", {"KEY": f" {new}, {old}\n"}) == [NEW, OLD]


@pytest.mark.parametrize("value", ["", ",", "secret", "c2VjcmV0", f"{'A' * 43}=,c2VjcmV0", "ä"])
def test_an_invalid_key_is_refused(value: str) -> None:
    """With the command that makes one. The error does not repeat the value."""
    with pytest.raises(ConfigError, match="openssl rand -base64 32") as caught:
        read_keys("KEY", {"KEY": value})
    assert not value.strip(",") or value not in str(caught.value)
