"""A server's view of its store."""

from __future__ import annotations

from pathlib import Path

from ts_stateful.store.access import StoreRoom
from ts_stateful.store.backends.file import FileStore
from ts_stateful.store.base import Capacity


def test_the_room_of_a_store_that_fails_is_unknown(tmp_path: Path) -> None:
    """Until it answers again."""
    store, room = FileStore(tmp_path / "store"), StoreRoom()
    room.look(store)
    assert room.capacity.total_bytes > room.capacity.free_bytes > 0
    (tmp_path / "store").rename(tmp_path / "elsewhere")
    room.look(store)
    assert room.capacity == Capacity()
    (tmp_path / "elsewhere").rename(tmp_path / "store")
    room.look(store)
    assert room.capacity.total_bytes > 0
