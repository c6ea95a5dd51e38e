"""Sequences in a store: an engine that dies at any moment is followed by one that goes on, and no step counts twice."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from tests.support.sums import (
    BAD,
    EVERY,
    Killed,
    MortalStore,
    Start,
    add,
    code,
    left,
    starter,
    total,
)
from ts_stateful.protocol.requests import Close, Fork, Open, Request

NUMBERS = (3, 1, 4, 1, 5, 9, 2)


@pytest.fixture
def store() -> MortalStore:
    """The store that outlives the engines."""
    return MortalStore()


@pytest.fixture
def start(store: MortalStore) -> Start:
    """Starts an engine; they share a clock, the store, and the names of requests."""
    return starter(store)


@EVERY
def test_another_engine_goes_on_where_the_last_one_stood(every: int, start: Start) -> None:
    """The states of all steps are there, whichever of them were committed."""
    answers: list[dict[str, Any]] = []
    for number in NUMBERS:
        answers.append(start(every).ask(add(number), creates_session=not answers))
    assert [total(answer) for answer in answers] == [sum(NUMBERS[: i + 1]) for i in range(7)]
    assert [answer["turn"] for answer in answers] == [1, 2, 3, 4, 5, 6, 7]
    assert answers[-1]["outputs"][1]["data"] == list(NUMBERS)
    assert [answer["outputs"][2]["data"] for answer in answers] == [[True]] + [[False]] * 6


def test_the_idle_time_begins_when_a_step_is_written(start: Start) -> None:
    """The sequence of a client that waited for a slow store goes on."""
    harness = start(sequence_max_idle_ms=60_000)
    harness.ask(add(1))
    request = harness.submit(add(2))
    harness.pump()
    harness.engine.step()
    harness.clock.now += 61
    harness.engine.tick()
    harness.run()
    assert total(harness.answer(request)) == 3
    assert total(harness.ask(add(3))) == 6


SCRIPT: Sequence[Request] = [
    *[add(number) for number in NUMBERS],
    add(7, end=True),
    add(1),
    add(2, turn=2),
    add(5, start=True),
    Fork(session_id="a", new_session_id="b"),
    add(6),
    add(8, "b", end=True),
    Close(session_id="a"),
    add(4),
]


BEGIN = (0, 8, 15)  # the worker has no sequence of that id before these


def talk(
    start: Start, script: Sequence[Request], every: int, at_once: int
) -> tuple[list[dict[str, Any]], bool]:
    """The answers to the script, and whether the engine died: the worker sends again what was not answered then."""
    harness, died = start(every), False
    answers: dict[int, dict[str, Any]] = {}
    for first in range(0, len(script), at_once):
        batch = range(first, min(first + at_once, len(script)))
        sent = {harness.submit(script[i], creates_session=i in BEGIN): i for i in batch}
        while True:
            try:
                harness.run()
            except Killed:
                died = True
            answers |= {sent[r]: harness.answer(r) for r in sent if r in harness.events}
            missing = {r: i for r, i in sent.items() if i not in answers}
            if not missing:
                break
            harness = start(every)
            for request_id, i in missing.items():
                harness.submit(script[i], creates_session=i in BEGIN, is_retry=request_id)
    return [without_times(answers[i]) for i in range(len(script))], died


def without_times(answer: dict[str, Any]) -> dict[str, Any]:
    """Return an answer without what a repetition adds."""
    return {key: value for key, value in answer.items() if key != "replayed"}


@EVERY
@pytest.mark.parametrize(("length", "at_once"), [(16, 1), (11, 4)])
def test_no_step_is_lost_or_counts_twice_whenever_an_engine_dies(
    every: int, length: int, at_once: int, start: Start, store: MortalStore
) -> None:
    """Steps, END, what follows it, START, a fork, a close: every answer is that of an engine that lives."""
    script = SCRIPT[:length]  # the first 11 are steps of one sequence
    expected, _ = talk(start, script, every, at_once)
    sums = {6: 25, 7: 32, 9: 3, 10: 5, 12: 11, 13: 13, 15: 4}
    assert all(total(expected[i]) == found for i, found in sums.items() if i < length)
    died, num_deaths = True, 0
    while died:
        store.delete("states-model")
        store.num_left = num_deaths
        answers, died = talk(start, script, every, at_once)
        store.num_left = None
        assert answers == expected, num_deaths
        num_deaths += 1
    assert num_deaths > length


@EVERY
def test_what_is_not_needed_is_removed(every: int, start: Start, store: MortalStore) -> None:
    """The last commit and the steps since then stay; after END its answer, after a close the note of it."""
    harness = start(every)
    for number in NUMBERS:
        harness.ask(add(number))
        assert len(store.list("states-model/a")) <= every + 1
    harness.ask(add(1, end=True))
    assert len(store.list("states-model/a")) == 1
    harness.ask(add(1, "b"))
    harness.ask(Close(session_id="b"))
    assert not left(store, "states-model/b")
    harness.ask(add(1, "c"))
    harness.clock.now += harness.engine.table.get("c").idle_s
    harness.engine.tick()
    harness.run()
    assert not left(store, "states-model/c")
    assert code(start(every).ask(add(1, "c"), creates_session=False)) == "session_not_found"


def test_a_step_that_could_not_be_written_is_taken_back(start: Start, store: MortalStore) -> None:
    """It can be sent again, whether or not the store had it; no other request notices."""
    harness = start(3)
    assert total(harness.ask(add(1))) == 1
    store.fails = True
    assert code(harness.ask(add(2))) == "store_unavailable"
    store.fails = False
    assert harness.engine.stats().store_failures == 1
    assert [total(harness.ask(add(2), creates_session=False)) for _ in range(3)] == [3, 5, 7]
    assert total(start(3).ask(add(1))) == 8


def test_a_step_is_taken_back_after_the_store_could_not_be_read(
    start: Start, store: MortalStore
) -> None:
    """A step that the store has, but whose client got an error, counts once even if the store stays out of order for long."""
    harness = start(3)
    assert total(harness.ask(add(1))) == 1
    store.fails = store.is_unreadable = True
    assert code(harness.ask(add(2))) == "store_unavailable"
    assert code(harness.ask(add(2), creates_session=False)) == "store_unavailable"
    store.fails = store.is_unreadable = False
    assert total(harness.ask(add(2), creates_session=False)) == 3


@EVERY
@pytest.mark.parametrize("had_it", [False, True])
def test_a_step_behind_a_beginning_that_could_not_be_written_is_not_written(
    every: int, had_it: bool, start: Start, store: MortalStore
) -> None:
    """Both can be sent again, whether or not the store had the beginning, and count once."""
    harness = start(every)
    opening = harness.submit(Open(session_id="a"), creates_session=True)
    harness.executor.run()
    harness.hear()  # it was looked for
    step = harness.submit(add(1), creates_session=False)
    harness.engine.step()
    store.fails = True
    harness.executor.run()
    store.fails = False
    if not had_it:
        store.delete("states-model/a")
    harness.run()
    assert code(harness.answer(opening)) == code(harness.answer(step)) == "store_unavailable"
    assert "error" not in harness.ask(Open(session_id="a"), creates_session=True)
    assert total(harness.ask(add(1), creates_session=False)) == 1


def test_with_best_effort_a_sequence_goes_on_without_the_store(
    start: Start, store: MortalStore
) -> None:
    """The next step writes what was missed."""
    harness = start(100, handler={"store": {"policy": "best_effort"}})
    assert total(harness.ask(add(1))) == 1
    store.fails = True
    assert [total(harness.ask(add(1))) for _ in range(2)] == [2, 3]
    store.fails = False
    assert total(harness.ask(add(1))) == 4
    assert total(start(100).ask(add(1))) == 5


@EVERY
def test_a_numbered_step_is_known_again_by_another_engine(every: int, start: Start) -> None:
    """Its client sends it again under another name, and gets the same answer."""
    harness = start(every)
    answers = [harness.ask(add(number, turn=i)) for i, number in enumerate(NUMBERS, 1)]
    again = start(every).ask(add(NUMBERS[-1], turn=7), creates_session=False)
    assert again == answers[-1] | {"replayed": True}
    assert code(start(every).ask(add(1, turn=9), creates_session=False)) == "turn_gap"
    assert total(start(every).ask(add(1, turn=8), creates_session=False)) == total(answers[-1]) + 1


def test_steps_of_one_pass_are_written_beside_each_other(start: Start) -> None:
    """And run again together."""
    harness, names = start(10), [f"s{i}" for i in range(8)]
    for number in NUMBERS:
        for name in names:
            harness.submit(add(number, name))
        harness.run()
    assert harness.num_calls == len(NUMBERS)
    after = start(10)
    sent = [after.submit(add(1, name), creates_session=False) for name in names]
    after.run()
    assert [total(after.answer(request)) for request in sent] == [sum(NUMBERS) + 1] * 8
    assert after.num_calls == len(NUMBERS) + 1


def test_a_step_that_fails_is_not_written(start: Start) -> None:
    """The sequence stays where it was, here and elsewhere."""
    harness = start()
    assert total(harness.ask(add(1))) == 1
    assert code(harness.ask(add(BAD))) == "internal"
    assert total(start().ask(add(1))) == 2
