"""Engines that write KV states to a store."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from typing import Any, NoReturn

from tests.support.harness import Harness
from tests.support.memory_store import MemoryStore
from tests.support.tiny import llama
from ts_stateful.language.network.load import Model
from ts_stateful.protocol.requests import Info
from ts_stateful.store.base import StoreUnavailable

__all__ = [
    "NEW_TOKENS",
    "TEXT",
    "LateStore",
    "ask",
    "crowd",
    "make",
    "model",
    "nothing",
    "out_of_order",
    "pieces",
    "residency",
    "session_bytes",
]

TEXT = "word " * 40
NEW_TOKENS = 6


def nothing() -> None:
    pass


class LateStore(MemoryStore):
    """A store of which `on_create` and `on_get` hear before KV states are written or read; they may raise."""

    def __init__(self) -> None:
        super().__init__()
        self.on_create: Callable[[], None] = nothing
        self.on_get: Callable[[], None] = nothing

    def create(self, key: str, data: bytes, ttl_s: float | None = None) -> bool:
        if key.startswith("kv/"):
            self.on_create()
        return super().create(key, data, ttl_s)

    def get(self, key: str) -> bytes | None:
        if key.startswith("kv/"):
            self.on_get()
        return super().get(key)


def out_of_order() -> NoReturn:
    raise StoreUnavailable("the store is out of order", "wait")


@cache
def model() -> Model:
    """One that sees nothing."""
    return llama()


@cache
def session_bytes() -> int:
    """What a session with one turn of `TEXT` takes."""
    harness = Harness(model())
    harness.open("s")
    ask(harness, "s")
    return harness.engine.table.device_bytes


def make(
    store: MemoryStore, sessions: float = 3.0, made: Model | None = None, **settings: Any
) -> Harness:
    """An engine with room for so many sessions of one turn; `settings` are of the store."""
    device_bytes = int(sessions * session_bytes()) if sessions else None
    handler = {
        "deviceCacheBytes": device_bytes,
        "sharedCacheBytes": 0,
        "store": {"kvSpill": True, **settings},
    }
    return Harness(made or model(), {"handler": handler}, store=store)


def ask(harness: Harness, name: str, text: str = TEXT, **fields: Any) -> dict[str, Any]:
    return harness.prompt(
        name, text, **{"max_new_tokens": NEW_TOKENS, "ignore_eos": True, **fields}
    )


def crowd(harness: Harness, names: Sequence[str] = "abcdef") -> None:
    """Sessions that take the memory from those that were there before."""
    for name in names:
        harness.open(name)
        ask(harness, name)
        harness.clock.now += 1


def residency(harness: Harness, name: str) -> str:
    return str(harness.ask(Info(session_id=name))["residency"])


def pieces(store: MemoryStore, name: str) -> Sequence[str]:
    return store.list(f"kv/{name}")
