"""Writes of sessions: how far it is from the end of a turn to the store, and what a failed write leaves."""

from __future__ import annotations

import sys
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

import pytest

from tests.support.asking import ask
from tests.support.harness import Harness
from tests.support.memory_store import MemoryStore
from tests.support.store_engines import FailingStore
from tests.support.tiny import llama
from ts_stateful.language.network.load import Model

MAX_CALLS = 10  # of ours, from the end of a turn to the store


@pytest.fixture(scope="module")
def model() -> Model:
    """One model for all tests here."""
    return llama()


def own_calls() -> list[str]:
    """Return our functions on the stack, the innermost first."""
    found, frame = list[str](), sys._getframe(1)
    while frame.f_back is not None:
        frame = frame.f_back
        if "/ts_stateful/" in frame.f_code.co_filename:
            found.append(frame.f_code.co_name)
    return found


class WatchedStore(MemoryStore):
    """Keeps the calls that led to its last entry."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[str] = []

    def create(self, key: str, data: bytes, ttl_s: float | None = None) -> bool:
        if key.startswith("sessions/"):
            self.calls = own_calls()
        return super().create(key, data, ttl_s)


def test_a_commit_is_few_calls_away_from_the_store(
    model: Model, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A reader follows them from `finish` to `create`, over the border of two threads."""
    store = WatchedStore()
    harness = Harness(model, store=store)
    harness.open("s")
    submitted: list[list[str]] = []
    submit = harness.executor.submit

    def watched(fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        submitted.append(own_calls())
        return submit(fn, *args, **kwargs)

    monkeypatch.setattr(harness.executor, "submit", watched)
    harness.ask(ask())
    [before] = [calls for calls in submitted if "finish" in calls]
    path = [*reversed(before[: before.index("finish") + 1]), *reversed(store.calls)]
    assert path[0] == "finish"
    assert path[-1] == "append"
    assert len([*path, "create"]) <= MAX_CALLS, path


def test_a_turn_whose_write_failed_is_written_when_it_is_asked_again(model: Model) -> None:
    """With the policy `required` it was undone; the log has no gap."""
    store = FailingStore()
    harness = Harness(model, store=store)
    harness.open("s")
    store.fails = True
    assert "error" in harness.ask(ask())
    store.fails = False
    reply = harness.ask(ask())
    assert reply["turn"] == 1
    assert [key[-1] for key in store.list("sessions/s")] == ["0", "1"]


def test_with_best_effort_the_next_write_has_both_turns(model: Model) -> None:
    """Nothing that was answered is missing from the log in the end."""
    store = FailingStore()
    harness = Harness(model, store=store, policy="best_effort")
    harness.open("s")
    store.fails = True
    assert harness.ask(ask())["turn"] == 1
    store.fails = False
    assert harness.ask(ask())["turn"] == 2
    assert len(store.list("sessions/s")) == 3
    other = Harness(model, store=store)
    assert other.ask(ask())["turn"] == 3
