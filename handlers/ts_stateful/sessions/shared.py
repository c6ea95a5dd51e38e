"""Things that sessions share, by their content: made once, held once, counted once.

A user of a thing holds a reference to it. Python's reference counts tell when the last user is gone, so nothing has to be
returned, and nothing can be returned twice.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from typing import Generic, Protocol, TypeVar
from weakref import WeakValueDictionary

from lru import LRU

__all__ = ["Shareable", "SharedCache"]


class Shareable(Protocol):
    """A thing that sessions may share; its content never changes."""

    @property
    def key(self) -> str:
        """The name of its content."""

    @property
    def num_bytes(self) -> int:
        """Bytes on the device: 0 until they are computed, then constant."""


ShareableT = TypeVar("ShareableT", bound=Shareable)


class SharedCache(Generic[ShareableT]):
    """Things by content. All methods may be called from any thread.

    `budget_bytes` bounds what is kept beside the sessions, not what they use.
    """

    def __init__(self, budget_bytes: int) -> None:
        self._budget = budget_bytes
        self._lock = threading.Lock()  # held for moments: the engine's thread may wait for it
        self._makers: WeakValueDictionary[str, threading.Lock] = WeakValueDictionary()
        # Every thing is in at most one of the two: held here, or only by those who use it. The size of the LRU is never its
        # bound, since nothing in it is smaller than a byte.
        self._kept: LRU[str, ShareableT] = LRU(max(1, budget_bytes))
        self._used: WeakValueDictionary[str, ShareableT] = WeakValueDictionary()
        self._kept_bytes = 0
        self.num_found = 0  # things that were there when they were asked for

    def get(self, key: str, make: Callable[[], ShareableT]) -> ShareableT:
        """Return the thing of that content, from `make` if there is none yet.

        Of two callers that ask for the same new thing, the second waits for the first; no other caller waits. An error of
        `make` is raised, and nothing is kept.
        """
        thing = self._find(key)
        if thing is None:
            with self._lock:
                maker = self._makers.setdefault(key, threading.Lock())
            with maker:  # which ends with its last user
                thing = self._find(key)
                if thing is None:
                    thing = make()
                    assert thing.key == key
                    with self._lock:
                        self._used[key] = thing
        return thing

    def keep(self, things: Iterable[ShareableT]) -> None:
        """Keep the things of a session that ends, in place of those that were used longest ago.

        Things that were never computed are not worth it.
        """
        with self._lock:
            for thing in things:
                if not 0 < thing.num_bytes <= self._budget:
                    continue
                if thing.key not in self._kept:
                    self._used.pop(thing.key, None)
                    self._kept_bytes += thing.num_bytes
                self._kept[thing.key] = thing  # the most recently used one
            while self._kept_bytes > self._budget:
                self._let_go()

    def evict(self, num_bytes: int | None = None) -> int:
        """Drop things that no session uses, the one used longest ago first, until `num_bytes` are free; None: all.

        Return the bytes that this frees on the device.
        """
        freed = 0
        with self._lock:
            while len(self._kept) and (num_bytes is None or freed < num_bytes):
                freed += self._let_go()
        return freed

    @property
    def num_bytes(self) -> int:
        """Bytes of all things, used or not."""
        with self._lock:
            return self._kept_bytes + sum(thing.num_bytes for thing in self._used.values())

    @property
    def kept_bytes(self) -> int:
        """Bytes of kept things: `evict` can free no more."""
        return self._kept_bytes

    def check_integrity(self) -> None:
        """Assert what must hold between any two calls."""
        with self._lock:
            kept = dict(self._kept.items())
            assert self._kept_bytes == sum(thing.num_bytes for thing in kept.values())
            assert self._kept_bytes <= self._budget
            assert not kept.keys() & set(self._used)
            assert all(thing.key == key for key, thing in (*kept.items(), *self._used.items()))

    def _find(self, key: str) -> ShareableT | None:
        with self._lock:
            thing = self._kept.get(key)  # counts as a use
            if thing is None:
                thing = self._used.get(key)
            self.num_found += thing is not None
            return thing

    def _let_go(self) -> int:
        """Drop the thing used longest ago from those that are kept; return its bytes if no session uses it."""
        # `popitem` of lru-dict 1.4 leaks a reference to what it returns.
        last = self._kept.peek_last_item()
        assert last is not None
        key, size = last[0], last[1].num_bytes
        self._kept_bytes -= size
        self._used[key] = last[1]
        del self._kept[key], last
        return 0 if key in self._used else size
