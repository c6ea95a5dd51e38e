"""Engines that share a store."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tests.support.harness import Harness
from tests.support.memory_store import MemoryStore
from ts_stateful.clock import SYSTEM_CLOCK, Clock
from ts_stateful.protocol.requests import Prompt
from ts_stateful.store.base import StoreUnavailable

__all__ = ["FailingStore", "ask", "code", "expire"]


class FailingStore(MemoryStore):
    """A store that fails on demand, or whose answers are lost: that of the next write, and those of the calls after it.

    It may also fail after `num_left` more calls, None: never; a write counts before and after it was done.
    """

    def __init__(self, clock: Clock = SYSTEM_CLOCK) -> None:
        super().__init__(clock)
        self.fails = False
        self.num_lost = 0
        self.num_left: int | None = None
        self._is_losing = False

    def create(self, key: str, data: bytes, ttl_s: float | None = None) -> bool:
        self._check()
        is_new = super().create(key, data, ttl_s)
        self._is_losing = self.num_lost > 0
        self._check()
        return is_new

    def get(self, key: str) -> bytes | None:
        self._check()
        return super().get(key)

    def list(self, prefix: str) -> Sequence[str]:
        self._check()
        return super().list(prefix)

    def delete(self, prefix: str) -> None:
        self._check()
        super().delete(prefix)

    def delete_keys(self, keys: Sequence[str]) -> None:
        self._check()
        super().delete_keys(keys)

    def remove(self, key: str, data: bytes) -> None:
        self._check()
        super().remove(key, data)

    def _check(self) -> None:
        if self._is_losing:
            self.num_lost -= 1
            self._is_losing = self.num_lost > 0
            raise StoreUnavailable("the store did not answer", "wait")
        if self.fails or self.num_left == 0:
            raise StoreUnavailable("the store failed", "wait")
        if self.num_left is not None:
            self.num_left -= 1


def ask(text: str = "Hello", **fields: Any) -> Prompt:
    return Prompt(
        session_id="s", prompt=text, **{"max_new_tokens": 8, "ignore_eos": True, **fields}
    )


def code(answer: dict[str, Any]) -> str:
    return str(answer["error"]["code"])


def expire(harness: Harness) -> None:
    """Let an engine's idle sessions expire."""
    harness.clock.now += 61
    harness.engine.tick()
    harness.run()
