"""Engines of a model that sums its inputs, which share a store."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import count
from typing import Any

import pytest
import torch
from torch import Tensor

from tests.support.clock import FakeClock
from tests.support.memory_store import MemoryStore
from tests.support.state_harness import StateHarness, state_settings
from ts_stateful.protocol.requests import InputTensor, Step
from ts_stateful.store.base import Store, StoreUnavailable

__all__ = [
    "BAD",
    "EVERY",
    "Killed",
    "MortalStore",
    "Start",
    "add",
    "code",
    "left",
    "model",
    "settings",
    "starter",
    "total",
]

BAD = 13  # a number that crashes the model
EVERY = pytest.mark.parametrize("every", [1, 3])


class Killed(BaseException):
    """The engine was killed at a store call."""


class MortalStore(MemoryStore):
    """A store that kills its engine before or after one of its calls, that fails after writes, or that cannot be read."""

    def __init__(self) -> None:
        super().__init__()
        self.num_left: int | None = None
        self.fails = False
        self.is_unreadable = False

    def create(self, key: str, data: bytes, ttl_s: float | None = None) -> bool:
        self._live()
        made = super().create(key, data, ttl_s)
        self._live()
        if self.fails:
            raise StoreUnavailable("the store is out of order", "wait")
        return made

    def get(self, key: str) -> bytes | None:
        if self.is_unreadable:
            raise StoreUnavailable("the store is out of order", "wait")
        return super().get(key)

    def list(self, prefix: str) -> Sequence[str]:
        self._live()
        return super().list(prefix)

    def delete(self, prefix: str) -> None:
        self._live()
        super().delete(prefix)

    def delete_keys(self, keys: Sequence[str]) -> None:
        self._live()
        super().delete_keys(keys)

    def remove(self, key: str, data: bytes) -> None:
        self._live()
        super().remove(key, data)

    def _live(self) -> None:
        if self.num_left is not None:
            self.num_left -= 1
            if self.num_left < 0:
                self.num_left = None
                raise Killed


def model(number: Tensor, start: Tensor, total: Tensor, seen: Tensor) -> tuple[Tensor, ...]:
    """Return a running sum, the numbers so far, and whether this was the first."""
    if bool((number == BAD).any()):
        raise ValueError("13")
    total, seen = total + number, torch.cat([seen, number], dim=1)
    return total, seen, start, total, seen


def settings(every: int, **handler: Any) -> Any:
    """Return the model's declaration."""
    growing = {"datatype": "INT64", "shape": [-1]}
    return state_settings(
        inputs=[
            {"name": "number", "datatype": "INT64", "shape": [1], "raw": "text"},
            {"name": "start", "datatype": "BOOL", "control": "start"},
        ],
        outputs=[
            {"name": "sum", "datatype": "INT64", "shape": [1], "raw": "text"},
            {"name": "numbers", **growing},
            {"name": "first", "datatype": "BOOL"},
        ],
        states=[
            {"name": "total", "datatype": "INT64", "shape": [1]},
            {"name": "seen", "max": 32, **growing},
        ],
        commitEvery=every,
        **handler,
    )


Start = Callable[..., StateHarness]


def starter(store: Store | None, now: float = 1000.0) -> Start:
    """Return a function that starts engines with a common store, clock and request names."""
    shared: dict[str, Any] = {"store": store, "clock": FakeClock(now), "numbers": count(1)}

    def engine(every: int = 1, **options: Any) -> StateHarness:
        initial = [
            torch.zeros(1, 1, dtype=torch.int64),
            torch.zeros(1, 0, dtype=torch.int64),
        ]
        declared = settings(every, **options.pop("handler", {}))
        return StateHarness(model, declared, initial=initial, **shared, **options)

    return engine


def left(store: Store, prefix: str = "states-model") -> list[str]:
    """Return the keys that a store has of sequences, but for the notes of their ends."""
    return [key for key in store.list(prefix) if b"\xa6closed" not in (store.get(key) or b"")]


def add(number: int, session_id: str = "a", **fields: Any) -> Step:
    """Return a step of the model."""
    return Step(session_id=session_id, inputs=(InputTensor("number", [number]),), **fields)


def total(answer: dict[str, Any]) -> int:
    """Return the sum in an answer."""
    assert "error" not in answer, answer
    return int(answer["outputs"][0]["data"][0])


def code(answer: dict[str, Any]) -> str:
    """Return the code of the error in an answer."""
    return str(answer["error"]["code"])
