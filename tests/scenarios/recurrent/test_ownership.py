"""Sequences between engines of one store: where one goes on, and what is not taken for one."""

from __future__ import annotations

import contextlib
from pathlib import Path

import pytest

from tests.support import sums
from tests.support.store_engines import FailingStore
from tests.support.sums import (
    EVERY,
    Killed,
    MortalStore,
    Start,
    add,
    code,
    settings,
    starter,
    total,
)
from ts_stateful.protocol.requests import Close, Fork, Info, Open
from ts_stateful.recurrent.step_records import scope_of
from ts_stateful.store.base import StoreUnavailable


@pytest.fixture
def store() -> MortalStore:
    """The store that outlives the engines."""
    return MortalStore()


@pytest.fixture
def start(store: MortalStore) -> Start:
    """Starts an engine; they share a clock, the store, and the names of requests."""
    return starter(store)


def test_a_sequence_goes_on_in_one_place(start: Start) -> None:
    """The engine that lags refuses a step, and then goes on from the last step of the other one."""
    first, second = start(), start()
    assert total(first.ask(add(1))) == 1
    assert [total(second.ask(add(1))) for _ in range(4)] == [2, 3, 4, 5]
    assert code(first.ask(add(1))) == "session_moved"
    assert total(first.ask(add(1))) == 6


def test_a_sequence_that_began_again_elsewhere_has_other_steps(start: Start) -> None:
    """A step whose number is that of the last one here is no repeat of it."""
    first, second = start(), start()
    assert [total(first.ask(add(1, turn=turn))) for turn in (1, 2)] == [1, 2]
    assert total(second.ask(add(7, start=True, turn=1))) == 7
    assert total(first.ask(add(1, turn=2))) == 8
    assert first.ask(add(1, turn=2))["replayed"]


def test_an_end_that_another_engine_has_answered_is_not_taken_back() -> None:
    """Its write had no answer, and was to be undone."""
    store = FailingStore()
    start = starter(store)
    first, second = start(), start()
    end = add(2, turn=2, end=True)
    first.ask(add(1, turn=1))
    store.num_lost = 2
    assert code(first.ask(end)) == "store_unavailable"
    assert second.ask(end)["replayed"]
    assert first.ask(end)["replayed"]
    assert second.ask(end)["replayed"]


@EVERY
def test_a_closed_sequence_that_the_store_kept_does_not_go_on(every: int) -> None:
    """Its id is that of a new sequence, which the later removal spares."""
    store = FailingStore()
    start = starter(store)
    engine = start(every)
    for number in (5, 6):
        engine.ask(add(number))
    store.fails = True
    assert engine.ask(Close(session_id="a"))["closed"]
    store.fails = False
    assert code(engine.ask(Info(session_id="a"))) == "session_closed"
    assert [total(engine.ask(add(1))) for _ in range(2)] == [1, 2]
    engine.clock.now += 30
    engine.engine.tick()
    engine.run()
    assert total(engine.ask(add(1))) == 3
    assert total(start(every).ask(add(1))) == 4


@EVERY
@pytest.mark.parametrize("start_again", [True, False])
@pytest.mark.parametrize("num_calls", range(6))
def test_a_step_of_an_engine_that_lagged_and_died_does_not_count(
    every: int, num_calls: int, start_again: bool, start: Start, store: MortalStore
) -> None:
    """Wherever it wrote: others have dropped older entries, or the id was used again after a close."""
    first, second = start(every), start(every)
    assert [total(first.ask(add(1))) for _ in range(3)] == [1, 2, 3]
    assert [total(second.ask(add(1))) for _ in range(5)] == [4, 5, 6, 7, 8]
    if start_again:
        assert second.ask(Close(session_id="a", erase=True))["closed"]
        assert [total(second.ask(add(1))) for _ in range(2)] == [1, 2]
    store.num_left = num_calls
    with contextlib.suppress(Killed):
        assert code(first.ask(add(9, start=True))) == "session_moved"
    store.num_left = None
    before = 2 if start_again else 8
    assert total(second.ask(add(1))) == before + 1
    assert [total(start(every).ask(add(1), creates_session=False)) for _ in range(4)] == [
        before + number for number in (2, 3, 4, 5)
    ]


def test_a_server_that_began_a_sequence_too_late_refuses_it(start: Start) -> None:
    """Another one began it meanwhile, and has dropped its first entry."""
    first, second = start(), start()
    late = first.submit(add(5))
    first.pump()
    assert [total(second.ask(add(1))) for _ in range(3)] == [1, 2, 3]
    first.run()
    assert code(first.answer(late)) == "session_moved"
    assert total(first.ask(add(1))) == 4


def test_a_sequence_that_ended_elsewhere_is_not_read(start: Start) -> None:
    """Nor is it forked, although its states are still here."""
    first, second = start(), start()
    first.ask(add(1))
    assert second.ask(Info(session_id="a"))["turns"] == 1
    assert total(second.ask(add(1))) == 2
    assert first.ask(Info(session_id="a"))["turns"] == 2
    second.ask(Close(session_id="a", erase=True))
    assert (
        code(first.ask(Fork(session_id="a", new_session_id="b"), creates_session=True))
        == "session_not_found"
    )
    assert code(first.ask(Info(session_id="a"))) == "session_not_found"


@pytest.mark.parametrize("num_steps", [1, 4])
def test_what_was_left_behind_expires_alone(num_steps: int, start: Start) -> None:
    """A sequence stays for the engine that goes on with it."""
    left, other = start(3), start(3)
    left.ask(add(1))
    left.clock.now += left.engine.table.get("a").idle_s / 2
    for _ in range(num_steps):
        answer = other.ask(add(1), creates_session=False)
    left.clock.now += left.engine.table.get("a").idle_s / 2
    left.engine.tick()
    left.run()
    assert "a" not in left.engine.table
    assert total(start(3).ask(add(1), creates_session=False)) == total(answer) + 1


@EVERY
def test_a_sequence_in_use_elsewhere_does_not_expire_here(
    every: int, start: Start, store: MortalStore
) -> None:
    """Although nothing was written there yet; the engine that goes on with it last removes it."""
    left, other = start(every), start(every)
    left.ask(add(1))
    left.clock.now += left.engine.table.get("a").idle_s / 2
    assert other.ask(Info(session_id="a"), is_retry="lost")["turns"] == 1
    for harness in (left, other):
        harness.clock.now += harness.engine.table.get("a").idle_s / 2
        harness.engine.tick()
        harness.run()
        assert "a" not in harness.engine.table
        if harness is left:
            assert total(other.ask(add(1), creates_session=False)) == 2
            harness.clock.now += other.engine.table.get("a").idle_s / 2
    assert not [*sums.left(store), *store.list("states-model-adopted")]


def test_a_search_for_an_expired_sequence_does_not_adopt_it(
    start: Start, store: MortalStore
) -> None:
    """So its engine still removes it."""
    harness = start()
    harness.ask(add(1))
    harness.clock.now += harness.engine.table.get("a").idle_s
    assert code(start().ask(Info(session_id="a"))) == "session_not_found"
    assert not store.list("states-model-adopted")
    harness.engine.tick()
    harness.run()
    assert not sums.left(store)


@EVERY
@pytest.mark.parametrize("num_calls", range(8))
def test_an_engine_that_dies_while_a_sequence_expires_leaves_none(
    every: int, num_calls: int, start: Start, store: MortalStore
) -> None:
    """Its id begins again, and the next expiry removes what was left."""
    harness = start(every)
    for number in (1, 2, 3):
        harness.ask(add(number))
    harness.clock.now += harness.engine.table.get("a").idle_s
    store.num_left = num_calls
    with contextlib.suppress(Killed):
        harness.engine.tick()
        harness.run()
    store.num_left = None
    after = start(every)
    assert code(after.ask(add(1), creates_session=False)) == "session_not_found"
    assert [total(after.ask(add(1))) for _ in range(4)] == [1, 2, 3, 4]
    assert total(start(every).ask(add(1))) == 5


def test_a_sequence_that_begins_while_a_full_store_is_emptied_stays() -> None:
    """There is no room for the end of the one before it, whose positions are used again."""
    totals = []

    class Full(MortalStore):
        def create(self, key: str, data: bytes, ttl_s: float | None = None) -> bool:
            if b"closed" in data:
                raise StoreUnavailable("the store is full", "free some space", is_full=True)
            return super().create(key, data, ttl_s)

        def delete(self, prefix: str) -> None:
            super().delete(prefix)
            if prefix == "states-model/a":
                totals.append(total(second.ask(add(5))))

    start = starter(Full())
    first, second = start(every=3), start(every=3)
    assert total(first.ask(add(1))) == 1
    assert first.ask(Close(session_id="a"))["closed"]
    assert totals == [5]
    assert total(start(every=3).ask(add(1))) == 6


def test_a_sequence_that_was_begun_in_two_places_is_one_of_them(start: Start) -> None:
    """The one that was written first."""
    first, second = start(), start()
    one, other = first.submit(add(1)), second.submit(add(2))
    for harness in (first, second):
        harness.pump()
    for harness in (first, second):
        harness.run()
    assert total(first.answer(one)) == 1
    assert second.code(other) == "session_moved"


def test_a_sequence_that_has_run_out_is_not_found(start: Start) -> None:
    """Its time passes while no engine has it, too."""
    harness = start()
    harness.ask(add(1))
    harness.clock.now += harness.engine.table.get("a").idle_s
    assert code(start().ask(add(1), creates_session=False)) == "session_not_found"
    assert total(start().ask(add(1, start=True), creates_session=False)) == 1


@EVERY
def test_a_sequence_in_use_does_not_idle_while_no_engine_is_there(every: int, start: Start) -> None:
    """The step that its engine died of is done by the next one, however long that took to start."""
    harness = start(every)
    harness.ask(add(1))
    harness.clock.now += harness.engine.table.get("a").idle_s
    assert total(start(every).ask(add(1), creates_session=False, is_retry="lost")) == 2


def test_another_program_has_other_sequences(start: Start, tmp_path: Path) -> None:
    """Neither other weights nor other declarations nor another name find what was not made by them."""
    (tmp_path / "none").write_bytes(b"one")
    scopes = {scope_of(settings(1), tmp_path, "model"), scope_of(settings(1), tmp_path, "other")}
    (tmp_path / "none").write_bytes(b"two")
    scopes.add(scope_of(settings(1), tmp_path, "model"))
    assert len(scopes) == 3
    assert total(start().ask(add(1))) == 1
    assert (
        code(start(scope="states-other").ask(add(1), creates_session=False)) == "session_not_found"
    )


def test_a_damaged_sequence_is_refused(start: Start, store: MortalStore) -> None:
    """It does not begin again, with START either, until its client has erased it."""
    start().ask(add(1))
    for key in store.list("states-model/a"):
        store.delete(key)
        store.create(key, b"damaged")
    engine = start()
    for step in (add(1), add(1, start=True)):
        refused = engine.ask(step, creates_session=False)
        assert (code(refused), refused["error"]["retryable"]) == ("internal", False)
        assert "damaged" in refused["error"]["message"]
    assert engine.ask(Close(session_id="a", erase=True))["closed"]
    assert total(engine.ask(add(1, start=True), creates_session=False)) == 1


def test_open_is_kept_with_its_metadata(start: Start) -> None:
    """Also without a step."""
    start().ask(Open(session_id="a", metadata={"user": "Anna"}), creates_session=True)
    after = start()
    assert total(after.ask(add(5), creates_session=False)) == 5
    assert after.engine.table.get("a").metadata == {"user": "Anna"}
