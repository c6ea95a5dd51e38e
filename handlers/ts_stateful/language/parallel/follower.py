"""A follower of a split model: it repeats what its driver does, on its own part of weights and KV states."""

from __future__ import annotations

import logging
from traceback import clear_frames

import torch

from ts_stateful.engine.services import DriverLink
from ts_stateful.language.kv.cache import KVCache
from ts_stateful.language.kv.spans import Span
from ts_stateful.language.network.load import Model
from ts_stateful.language.parallel.commands import (
    Clear,
    Command,
    Copy,
    Cut,
    Forget,
    Move,
    Pass,
    load,
)
from ts_stateful.language.parallel.group import broadcast

__all__ = ["Follower"]

logger = logging.getLogger(__name__)

_HOST = torch.device("cpu")


class Follower:
    """One of the further ranks."""

    def __init__(self, model: Model, driver: DriverLink) -> None:
        self._model = model
        self._driver = driver
        self._kvs: dict[int, KVCache] = {}

    @property
    def num_parameters(self) -> int:
        """The number of weights of the whole model."""
        return self._model.num_parameters

    def run(self) -> None:
        """Do the driver's commands until it exits."""
        while (data := self._driver.receive()) is not None:
            try:
                command, tensors = load(data, self._model.device)
                broadcast(tensors)
                self._do(command)
            except torch.AcceleratorError:
                raise  # the device cannot compute any more
            except Exception as error:  # stock code may raise anything, in the driver as well
                logger.error("a command failed: %s: %s", type(error).__name__, error)
                clear_frames(error.__traceback__)  # or they would keep what the pass has computed
                self._driver.report_failure()

    def _do(self, command: Command) -> None:
        match command:
            case Pass(ids, spans, positions, keep, inputs):
                own = [Span(self._kv(span.kv), *span[1:]) for span in spans]
                self._model.forward(ids, own, torch.from_numpy(positions), keep, **inputs)
            case Cut(number, length):
                self._kv(number).truncate(length)
            case Copy(number, length, copy):
                self._kvs[copy] = self._kv(number).copy(length)
            case Move(number, length, to_host):
                kv = self._kv(number)
                kv.length = length  # the driver has gone back from a draft
                kv.move(_HOST if to_host else self._model.device)
            case Clear(number):
                self._kv(number).clear(self._model.device)
            case Forget(numbers):
                for number in numbers:
                    self._kvs.pop(number, None)

    def _kv(self, number: int) -> KVCache:
        if number not in self._kvs:
            self._kvs[number] = self._model.new_kv()
        return self._kvs[number]
