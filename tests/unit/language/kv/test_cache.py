"""The KV states of one session, and what another thread may copy of them while they are in use."""

from __future__ import annotations

import errno
import mmap
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from ts_stateful.language.kv import cache as kv_module
from ts_stateful.language.kv.cache import KVCache
from ts_stateful.language.kv.layout import KVLayout, LayerShape
from ts_stateful.language.kv.memory import Memory

HOST = torch.device("cpu")
LAYOUT = KVLayout((LayerShape(2, 4, 3), LayerShape(1, 4, 4)), torch.float32)


@pytest.fixture
def kv() -> KVCache:
    """Ten tokens with states of their own."""
    made = KVCache(LAYOUT, HOST)
    made.reserve(10)
    for part in made.states:
        part[:, :10] = torch.arange(part[:, :10].numel()).reshape(part[:, :10].shape)
    made.length = 10
    return made


def test_few_states_lie_close_together(kv: KVCache) -> None:
    """On a CPU they grow by doubling, and keep their values; many get address space at once."""
    before = [part[:, :10].clone() for part in kv.states]
    assert kv.capacity == 16
    kv.reserve(17)
    assert kv.capacity == 32
    for part, states in zip(kv.states, before, strict=True):
        assert torch.equal(part[:, :10], states)
    kv.reserve(3000)
    assert kv.capacity == 4096
    assert torch.equal(kv.states[0][:, :10], before[0])


def test_a_snapshot_is_a_copy(kv: KVCache) -> None:
    """Of all layers, keys first; tokens that follow change nothing."""
    snapshot = kv.snapshot()
    kv.reserve(12)
    copies = snapshot.read(2, 6)
    assert copies is not None
    for copy, part in zip(copies, kv.states, strict=True):
        assert torch.equal(copy, part[:, 2:6])
        assert copy.is_contiguous()
        assert copy.data_ptr() != part[:, 2:6].data_ptr()


def test_a_snapshot_has_what_has_not_changed(kv: KVCache) -> None:
    """Cut back, the cache may get other tokens there at any time."""
    snapshot = kv.snapshot()
    kv.truncate(5)
    assert snapshot.read(0, 5) is not None
    assert snapshot.read(0, 6) is None
    assert snapshot.length == 5


def test_a_snapshot_stays_right_where_its_states_are_elsewhere(kv: KVCache) -> None:
    """Until they change there."""
    snapshot = kv.snapshot()
    kv.reserve(100_000)
    assert snapshot.length == 10
    kv.truncate(5)
    assert snapshot.length == 5


@pytest.mark.parametrize(
    "change",
    [
        lambda kv: kv.clear(HOST),
        lambda kv: kv.move(HOST),
        lambda kv: kv.reserve(100_000),
        lambda kv: kv.truncate(0),
        lambda kv: kv.release_snapshot(),
        lambda kv: kv.snapshot(),
    ],
)
def test_a_snapshot_keeps_no_memory(kv: KVCache, change: Callable[[KVCache], object]) -> None:
    """Memory that the cache releases is released by the snapshot as well."""
    snapshot = kv.snapshot()
    change(kv)
    assert snapshot.read(0, 1) is None
    assert not snapshot._blocks


@pytest.mark.parametrize(
    "grow",
    [lambda kv: kv.reserve(100_000), lambda kv: kv.move(HOST)],
    ids=["reserve", "move"],
)
@pytest.mark.parametrize("where", ["Memory", "_copy"])
def test_a_cache_that_gets_no_memory_is_what_it_was(
    kv: KVCache, monkeypatch: pytest.MonkeyPatch, grow: Callable[[KVCache], object], where: str
) -> None:
    """Otherwise a repeated step would write outside of its memory."""

    def fail(*_: object) -> None:
        raise torch.OutOfMemoryError

    before = (kv.capacity, kv.device, kv.num_bytes, kv.addresses.copy())
    copies = [part[:, :10].clone() for part in kv.states]
    with monkeypatch.context() as patch:
        patch.setattr(kv_module, where, fail)
        with pytest.raises(torch.OutOfMemoryError):
            grow(kv)
    assert (kv.capacity, kv.device, kv.num_bytes) == before[:3]
    assert np.array_equal(kv.addresses, before[3])
    grow(kv)
    assert all(map(torch.equal, (part[:, :10] for part in kv.states), copies))


def test_a_kernel_that_gives_no_memory_is_out_of_memory(
    kv: KVCache, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The error is that of every allocator, so the engine makes room, or computes states again."""

    def refuse(*_: object, **__: object) -> None:
        raise OSError(errno.ENOMEM, "Cannot allocate memory")

    monkeypatch.setattr(mmap, "mmap", refuse)
    with pytest.raises(MemoryError, match="Cannot allocate"):
        kv.reserve(100_000)


def test_to_forget_takes_no_memory(kv: KVCache, monkeypatch: pytest.MonkeyPatch) -> None:
    """It works without free memory."""
    taken = []

    def memory(num_elements: int, *args: Any) -> Memory:
        taken.append(num_elements)
        return Memory(num_elements, *args)

    monkeypatch.setattr(kv_module, "Memory", memory)
    kv.clear(HOST)
    assert taken == [0]
    assert (kv.num_bytes, kv.capacity) == (0, 0)


def test_a_snapshot_waits_for_states_on_their_way(
    kv: KVCache, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A GPU copies to the host while everything else goes on."""

    class Arrival:
        def synchronize(self) -> None:
            for part in kv.states:
                part[:, :10] = 7

    monkeypatch.setattr(kv_module, "_end_of_copies", lambda *_: Arrival())
    kv.move(HOST)
    copies = kv.snapshot().read(0, 10)
    assert copies is not None
    assert all(bool((copy == 7).all()) for copy in copies)


def test_states_on_their_way_that_were_cut_go_back_when_they_have_arrived(
    kv: KVCache, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The host waits to gather the rest of them, and a GPU's queue does not order that."""
    kv.reserve(100)
    kv.length = 100
    waited = []

    class Arrival:
        def synchronize(self) -> None:
            waited.append(kv.length)

    monkeypatch.setattr(kv_module, "_end_of_copies", lambda *_: Arrival())
    kv.move(HOST)
    kv.move(HOST)
    assert waited == []  # all of them: by the queue
    kv.truncate(10)
    kv.move(HOST)
    assert waited == [10]
