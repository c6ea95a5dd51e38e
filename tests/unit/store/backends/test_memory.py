"""Values in memory."""

from __future__ import annotations

import pytest

from tests.support.fake_client import FakeTime
from tests.support.store_behaviour import StoreBehaviour
from ts_stateful.store.backends.memory import MemoryStore
from ts_stateful.store.base import Store


class TestMemoryStore(StoreBehaviour):
    """What every store does."""

    @pytest.fixture
    def store(self) -> Store:
        """An empty one."""
        return MemoryStore()


def test_a_value_is_forgotten_when_its_life_is_over() -> None:
    """The sweep removes it, not before its end and not what lives on; a longer life asked for later counts."""
    time = FakeTime()
    store = MemoryStore(time.clock)
    for key, ttl_s in (("a", 10.0), ("b", 20.0), ("c", None), ("d", 10.0)):
        store.create(key, b"x", ttl_s)
    store.create("d", b"x", 20.0)
    time.now += 10
    store.sweep()
    assert [key for key in "abcd" if store.get(key)] == ["b", "c", "d"]
