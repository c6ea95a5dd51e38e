"""Steps of sequences in a store."""

from __future__ import annotations

import hashlib
from typing import Any

import pytest
import torch
from msgspec import structs

from tests.support import sums
from tests.support.clock import FakeClock
from tests.support.journals import make_journal, written
from tests.support.memory_store import MemoryStore
from ts_stateful.recurrent.step_records import (
    Answered,
    FoundSequence,
    SequencePosition,
    SequenceRecords,
    StepEntry,
)
from ts_stateful.session_log.ownership import Doubtful
from ts_stateful.store.base import StoreCorrupt

STATES = [torch.arange(3.0), torch.zeros(2, 0)]


CLOCK = FakeClock()
START = CLOCK.unix()


def make_logs(store: MemoryStore) -> SequenceRecords:
    return SequenceRecords(store, "states-m", 3, 10.0, CLOCK)


def find(logs: SequenceRecords, now: float, **fields: Any) -> FoundSequence:
    """Look for the sequence at so many seconds."""
    CLOCK.now += START + now - CLOCK.unix()
    return logs.find("a", fields.pop("doubtful", None), **fields)


@pytest.fixture
def store() -> MemoryStore:
    """An empty one."""
    return MemoryStore()


@pytest.fixture
def logs(store: MemoryStore) -> SequenceRecords:
    """The sequences of one model."""
    return make_logs(store)


def append(
    logs: SequenceRecords, position: SequencePosition, entry: StepEntry, states: Any
) -> None:
    """Write a step of the sequence `a`."""
    write = logs.step("a", entry, states)
    assert written(make_journal(logs.logs), position, write) is None


def end(logs: SequenceRecords, position: SequencePosition, reason: Any) -> None:
    """Remove the sequence `a`."""
    make_journal(logs.logs).end("a", position, logs.closed(reason), lambda outcome: None)


def entry(number: int, **fields: Any) -> StepEntry:
    answered = Answered((f"r{number}",), b"{}")
    times = START, START + 100, START + number
    return StepEntry(number, answered, *times, writer="w", **fields)


def test_an_entry_that_stands_alone_removes_what_came_before(
    logs: SequenceRecords, store: MemoryStore
) -> None:
    """Entries and states; those after it stay until the next one."""
    position = logs.new_position()
    append(logs, position, entry(1, start=True), None)
    append(logs, position, entry(2), None)
    assert len(store.list("states-m/a")) == 2
    for number in (3, 4):  # the same states twice have two files
        append(logs, position, entry(number), STATES)
        assert len(store.list("states-m/a")) == 2
    append(logs, position, entry(5), None)
    assert sorted(position.keys) == store.list("states-m/a")
    found = find(logs, 6.0)
    assert [one.number for one in found.entries] == [4, 5]
    assert [state.tolist() for state in found.states] == [state.tolist() for state in STATES]
    assert found.position.known == position.known
    assert [one.request_ids for one in found.position.recent] == [("r4",), ("r5",)]


def test_a_step_may_be_tried_again_with_the_same_states(
    logs: SequenceRecords, store: MemoryStore
) -> None:
    """A file that an earlier attempt left is not removed with it."""
    position = logs.new_position()
    append(logs, position, entry(1), STATES)
    store.delete("states-m/a/00000000")
    again = logs.new_position()
    again.keys += store.list("states-m/a")
    append(logs, again, entry(1), STATES)
    assert len(find(logs, 2.0).states) == 2


def test_what_was_taken_back_is_not_found(logs: SequenceRecords, store: MemoryStore) -> None:
    """The store may have an entry whose write failed."""
    position = logs.new_position()
    append(logs, position, entry(1, start=True), None)
    doubtful = Doubtful(position.known, entry(2), 60.0)
    append(logs, position, entry(2), None)
    assert [one.number for one in find(logs, 3.0, doubtful=doubtful).entries] == [1]


@pytest.mark.parametrize(
    ("now", "in_use", "is_found"),
    [(11.0, False, True), (12.0, False, False), (99.0, True, True), (100.0, True, False)],
)
def test_only_a_sequence_that_goes_on_is_adopted(
    logs: SequenceRecords, store: MemoryStore, now: float, in_use: bool, is_found: bool
) -> None:
    """It ends when it was idle for too long, unless it was in use, and at the end of its life."""
    position = logs.new_position()
    append(logs, position, entry(1, start=True), None)
    append(logs, position, entry(2), None)
    found = find(logs, now, in_use=in_use)
    assert bool(found.entries) == is_found
    assert store.list("states-m-adopted") == (["states-m-adopted/a/00000002"] if is_found else [])
    assert found.position.known == position.known


def test_a_close_removes_a_sequence_that_is_used_elsewhere(
    logs: SequenceRecords, store: MemoryStore
) -> None:
    """An expiry does not."""
    position = logs.new_position()
    append(logs, position, entry(1), STATES)
    other = make_logs(store)
    append(logs, find(other, 2.0).position, entry(2), None)
    end(logs, position, "expired")
    assert [one.number for one in find(other, 3.0).entries] == [1, 2]
    end(logs, position, "closed")
    assert not [*sums.left(store, "states-m"), *store.list("states-m-adopted")]


def test_states_that_are_missing_are_damage(logs: SequenceRecords, store: MemoryStore) -> None:
    """The sequence is not begun again without its client."""
    position: SequencePosition = logs.new_position()
    append(logs, position, entry(1), STATES)
    store.delete(position.keys[0])
    with pytest.raises(StoreCorrupt, match="states of a sequence are missing"):
        find(logs, 2.0)


def test_elements_of_an_unknown_type_are_damage(logs: SequenceRecords, store: MemoryStore) -> None:
    """The file is in order, but torch lacks the type."""
    header = b'{"0000":{"dtype":"F4","shape":[2],"data_offsets":[0,1]}}'
    data = len(header).to_bytes(8, "little") + header + b"\0"
    position: SequencePosition = logs.new_position()
    named = structs.replace(entry(1), states=hashlib.sha256(data).hexdigest())
    append(logs, position, named, None)
    store.create(f"{logs.logs.log('a').prefix}/{named.states}", data)
    with pytest.raises(StoreCorrupt, match="cannot be read"):
        find(logs, 2.0)
