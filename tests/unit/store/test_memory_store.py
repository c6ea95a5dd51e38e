"""Values in memory."""

from __future__ import annotations

import pytest

from tests.support.clock import FakeClock
from tests.support.memory_store import MemoryStore
from tests.support.store_behaviour import StoreBehaviour
from ts_stateful.store.base import Store


class TestMemoryStore(StoreBehaviour):
    """The contract of every store."""

    @pytest.fixture
    def store(self) -> Store:
        """Return an empty store."""
        return MemoryStore()


def test_an_expired_value_is_removed() -> None:
    """By a sweep, and never before its end. A later call prolongs it."""
    clock = FakeClock()
    store = MemoryStore(clock)
    for key, ttl_s in (("a", 10.0), ("b", 20.0), ("c", None), ("d", 10.0)):
        store.create(key, b"x", ttl_s)
    store.create("d", b"x", 20.0)
    clock.now += 10
    store.sweep()
    assert [key for key in "abcd" if store.get(key)] == ["b", "c", "d"]
