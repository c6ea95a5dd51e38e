"""Slots for the states of sequences, where there is no memory for more of them."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor

from ts_stateful.protocol.declarations import State
from ts_stateful.recurrent.slots import SlotPool, initial_states

STATES = [State(name="hidden", shape=(3,)), State(name="cell", shape=(2,), initial=1.0)]


def test_a_pool_that_cannot_grow_is_what_it_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whichever of the states has no room; it can grow later."""
    pool = SlotPool(STATES, initial_states(STATES, tmp_path), torch.device("cpu"), max_slots=64)
    slots = [pool.take() for _ in range(8)]
    index = pool.index(slots)
    before = [torch.arange(24.0).reshape(8, 3), torch.arange(16.0).reshape(8, 2)]
    pool.scatter(index, before)
    room = SlotPool._room

    def refused(self: SlotPool, state: State, num_slots: int) -> Tensor:
        if state.name == "cell":
            raise MemoryError
        return room(self, state, num_slots)

    with monkeypatch.context() as patch:
        patch.setattr(SlotPool, "_room", refused)
        with pytest.raises(MemoryError):
            pool.take()
    pool.check_integrity()
    assert pool.take() == 8
    after = pool.gather(index, [None, None])
    assert all(map(torch.equal, before, after))
