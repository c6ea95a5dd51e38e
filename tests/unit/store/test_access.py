"""A server's view of its store."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from ts_stateful.store.access import StoreAccess
from ts_stateful.store.backends.file import FileStore
from ts_stateful.store.base import Capacity


def test_the_room_of_a_store_that_fails_is_unknown(tmp_path: Path) -> None:
    """Until it answers again."""
    with ThreadPoolExecutor() as executor:
        access = StoreAccess(FileStore(tmp_path / "store"), "required", executor)
    access.look()
    assert access.capacity.total_bytes > access.capacity.free_bytes > 0
    (tmp_path / "store").rename(tmp_path / "elsewhere")
    access.look()
    assert access.capacity == Capacity()
    (tmp_path / "elsewhere").rename(tmp_path / "store")
    access.look()
    assert access.capacity.total_bytes > 0
