"""The commands by which the driver of a split model lets its followers do the same."""

from __future__ import annotations

import io
import pickle
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from ts_stateful.language.kv.spans import Block

__all__ = ["Clear", "Command", "Copy", "Cut", "Forget", "Move", "Pass", "dump", "load"]


class SpanOf(NamedTuple):
    """A `Span` of the KV states with a number."""

    kv: int
    start: int
    num_tokens: int
    blocks: Sequence[Block]


class Pass(NamedTuple):
    """A forward pass, with the arguments of `Forward`."""

    ids: list[int]
    spans: list[SpanOf]
    positions: np.ndarray[Any, Any]
    keep: list[int]
    inputs: dict[str, Any]


class Cut(NamedTuple):
    """Forget the tokens of these KV states after `length`."""

    kv: int
    length: int


class Copy(NamedTuple):
    """Copy the first `length` tokens of these KV states, as those with the number `copy`."""

    kv: int
    length: int
    copy: int


class Move(NamedTuple):
    """Move the `length` tokens of these KV states to the host, or to the rank's own device."""

    kv: int
    length: int
    to_host: bool


class Clear(NamedTuple):
    """Forget these KV states, and release their memory."""

    kv: int


class Forget(NamedTuple):
    """Forget KV states that no session has any more."""

    kvs: list[int]


Command = Pass | Cut | Copy | Move | Clear | Forget


class _Pickler(pickle.Pickler):
    """Leaves tensors out, which travel between devices."""

    def __init__(self, file: io.BytesIO) -> None:
        super().__init__(file, pickle.HIGHEST_PROTOCOL)
        self.tensors: list[Tensor] = []

    def persistent_id(self, value: object) -> Any:
        """Return the shape and type of a tensor, and None for what is written itself."""
        if not isinstance(value, Tensor):
            return None
        self.tensors.append(value)
        return tuple(value.shape), value.dtype


class _Unpickler(pickle.Unpickler):
    def __init__(self, file: io.BytesIO, device: torch.device) -> None:
        super().__init__(file)
        self.tensors: list[Tensor] = []
        self._device = device

    def persistent_load(self, pid: Any) -> Tensor:
        """Return an empty tensor of this shape and type."""
        shape, dtype = pid
        self.tensors.append(torch.empty(shape, dtype=dtype, device=self._device))
        return self.tensors[-1]


def dump(command: Command) -> tuple[bytes, list[Tensor]]:
    """Return a command for processes that were forked from this one, and the tensors that have to follow it."""
    file = io.BytesIO()
    pickler = _Pickler(file)
    pickler.dump(command)
    return file.getvalue(), pickler.tensors


def load(data: bytes, device: torch.device) -> tuple[Command, list[Tensor]]:
    """Return a command that `dump` wrote, and its tensors, which are still to be filled."""
    unpickler = _Unpickler(io.BytesIO(data), device)
    command: Command = unpickler.load()
    return command, unpickler.tensors
