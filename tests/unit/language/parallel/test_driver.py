"""A driver and a follower, each with the whole model: all that happens to KV states happens to both."""

from __future__ import annotations

import gc
from collections import deque
from typing import Any

import pytest
import torch

from tests.support.tiny import llama
from ts_stateful.language.kv.cache import KVCache
from ts_stateful.language.kv.spans import Span
from ts_stateful.language.network.load import Model
from ts_stateful.language.parallel.driver import DrivenKV, Driver
from ts_stateful.language.parallel.follower import Follower

HOST = torch.device("cpu")


class Wire:
    """Both ends of the connection: messages are received when a test wants it."""

    def __init__(self) -> None:
        self.messages: deque[bytes] = deque()
        self.num_failed = self.num_reported = 0

    def send(self, message: bytes) -> None:
        """See `Followers`."""
        self.messages.append(message)

    def failed(self) -> None:
        """See `Followers`."""
        self.num_failed += 1

    def receive(self) -> bytes | None:
        """See `DriverLink`."""
        return self.messages.popleft() if self.messages else None

    def report_failure(self) -> None:
        """See `DriverLink`."""
        self.num_reported += 1


class Two:
    """Both ranks."""

    def __init__(self, model: Model, other: Model) -> None:
        self.wire, self.model = Wire(), model
        model.forward.driver = Driver(self.wire)
        self.follower = Follower(other, self.wire)
        self.kv = self.new()

    def new(self) -> DrivenKV:
        """Return the KV states of a new session."""
        kv = self.model.new_kv()
        assert isinstance(kv, DrivenKV)
        return kv

    def compute(self, kv: KVCache, ids: list[int]) -> torch.Tensor:
        """Compute tokens in both."""
        return self.model.forward(ids, [Span(kv, kv.length, len(ids))], None, [len(ids) - 1])

    def check(self, *kvs: KVCache) -> None:
        """The follower has the same states of these, and of no others."""
        self.follower.run()
        found = self.follower._kvs
        assert found.keys() == {kv.number for kv in kvs if isinstance(kv, DrivenKV)}
        for kv in kvs:
            assert isinstance(kv, DrivenKV)
            their = found[kv.number]
            assert their.length == kv.length
            for part, counterpart in zip(kv.states, their.states, strict=True):
                assert torch.equal(part[:, : kv.length], counterpart[:, : kv.length])


@pytest.fixture
def two() -> Two:
    """Two ranks, and a session of five tokens."""
    two = Two(llama(), llama())
    two.compute(two.kv, [1, 2, 3, 4, 5])
    return two


def test_a_pass_is_computed_by_both(two: Two) -> None:
    """Of several sessions, too."""
    other = two.new()
    spans = [Span(two.kv, 5, 2), Span(other, 0, 3)]
    two.model.forward([6, 7, 1, 2, 3], spans, None, [1, 4])
    two.check(two.kv, other)
    assert (two.kv.length, other.length) == (7, 3)


def test_states_are_cut_and_cleared_by_both(two: Two) -> None:
    """The next pass begins at the same token."""
    two.kv.truncate(2)
    two.check(two.kv)
    two.compute(two.kv, [9])
    two.check(two.kv)
    two.kv.clear(HOST)
    two.check(two.kv)
    assert two.kv.length == 0


def test_states_are_copied_and_moved_by_both(two: Two) -> None:
    """A copy is independent; a draft that was not accepted does not move."""
    copy = two.kv.copy(3)
    two.compute(copy, [8])
    two.kv.length = 4
    two.kv.move(HOST)
    two.check(two.kv, copy)


def test_states_that_are_collected_are_dropped_by_both(two: Two) -> None:
    """With the next command after the pass that does not have them any more."""
    other = two.new()
    two.compute(other, [1])
    two.check(two.kv, other)
    del other
    two.compute(two.kv, [6])
    gc.collect()
    two.kv.truncate(5)
    two.check(two.kv)


def test_a_failure_is_compared(two: Two, monkeypatch: pytest.MonkeyPatch) -> None:
    """The driver asks if the follower failed, too; the follower reports it, and both go on."""

    def fail(*_: Any, **__: Any) -> None:
        raise ValueError("defective")

    two.follower.run()
    with monkeypatch.context() as patch:
        for model in (two.model, two.follower._model):
            patch.setattr(model.forward, "_compute", fail)
        with pytest.raises(ValueError, match="defective"):
            two.compute(two.kv, [6])
        two.follower.run()
    assert (two.wire.num_failed, two.wire.num_reported) == (1, 1)
    two.compute(two.kv, [6])
    two.check(two.kv)
