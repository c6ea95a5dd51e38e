"""The driver of a model that is split over several devices: all that it computes or forgets, its followers do as well."""

from __future__ import annotations

import itertools
import weakref
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, cast

import torch

from ts_stateful.engine.services import Followers
from ts_stateful.language.kv.cache import KVCache
from ts_stateful.language.kv.layout import KVLayout
from ts_stateful.language.kv.spans import Rows
from ts_stateful.language.parallel.commands import (
    Clear,
    Command,
    Copy,
    Cut,
    Forget,
    Move,
    Pass,
    SpanOf,
    dump,
)
from ts_stateful.language.parallel.group import broadcast

__all__ = ["DrivenKV", "Driver"]


class Driver:
    """Rank 0. All methods are for the engine's thread, whose order is that of all ranks."""

    def __init__(self, followers: Followers) -> None:
        self._followers = followers
        self._numbers = itertools.count(1)
        self._dropped: deque[int] = deque()  # of KV states; appended when they are collected

    def new_kv(self, layout: KVLayout, device: torch.device) -> DrivenKV:
        """Return empty KV states that every rank has a part of."""
        return DrivenKV(layout, device, self)

    def next_number(self, kv: DrivenKV) -> int:
        """Return a number for KV states; followers forget theirs after these are collected."""
        number = next(self._numbers)
        weakref.finalize(kv, self._dropped.append, number).atexit = False
        return number

    def send(self, command: Command) -> None:
        """Let the followers do a command."""
        if self._dropped:
            gone = [self._dropped.popleft() for _ in range(len(self._dropped))]
            self._followers.send(dump(Forget(gone))[0])
        data, tensors = dump(command)
        self._followers.send(data)
        broadcast(tensors)

    @contextmanager
    def followed(self, rows: Rows, keep: list[int], inputs: dict[str, Any]) -> Iterator[None]:
        """Let the followers compute a forward pass, with these arguments of `Forward`, while the driver does."""
        parts = [SpanOf(cast(DrivenKV, span.kv).number, *span[1:]) for span in rows.spans]
        self.send(Pass(rows.ids, parts, rows.positions.numpy(), keep, inputs))
        try:
            yield
        except torch.AcceleratorError:
            raise  # this process must die, and the others with it
        except Exception:  # stock code may raise anything
            self._followers.failed()
            raise


class DrivenKV(KVCache):
    """The driver's part of a session's KV states: its heads. `number` names the parts of the followers."""

    def __init__(self, layout: KVLayout, device: torch.device, driver: Driver) -> None:
        super().__init__(layout, device)
        self._driver = driver
        self.number = driver.next_number(self)

    def truncate(self, length: int) -> None:
        """See `KVCache`."""
        super().truncate(length)
        self._driver.send(Cut(self.number, self.length))

    def move(self, device: torch.device) -> None:
        """See `KVCache`."""
        super().move(device)
        self._driver.send(Move(self.number, self.length, to_host=device.type == "cpu"))

    def clear(self, device: torch.device) -> None:
        """See `KVCache`."""
        super().clear(device)
        self._driver.send(Clear(self.number))

    def copy(self, length: int) -> KVCache:
        """See `KVCache`."""
        copy = super().copy(length)
        self._driver.send(Copy(self.number, length, cast(DrivenKV, copy).number))
        return copy

    def _empty(self) -> KVCache:
        return DrivenKV(self._layout, self.device, self._driver)
