"""First steps that are refused or fail: what becomes of the sequence before them, and of the steps after them."""

from __future__ import annotations

import pytest

from tests.scenarios.recurrent.test_store import talk
from tests.support.sums import BAD, MortalStore, Start, add, code, left, starter, total
from ts_stateful.protocol.requests import Open

STORES = pytest.mark.parametrize("every", [0, 1, 3])  # 0: none


@pytest.fixture
def store() -> MortalStore:
    """The store that outlives the engines."""
    return MortalStore()


@pytest.fixture
def start(store: MortalStore, every: int) -> Start:
    """Starts an engine, with the store if it commits."""
    return starter(store if every else None)


@STORES
def test_a_start_that_is_refused_leaves_the_sequence(every: int, start: Start) -> None:
    """A first step has the number 1."""
    harness = start(every)
    for turn in (1, 2, 3):
        harness.ask(add(turn, turn=turn))
    assert code(harness.ask(add(9, start=True, turn=5))) == "turn_gap"
    assert total(harness.ask(add(4, turn=4))) == 10


@STORES
@pytest.mark.parametrize("opened", [True, False])
def test_after_a_first_step_that_fails_there_is_no_sequence(
    every: int, opened: bool, start: Start, store: MortalStore
) -> None:
    """Neither the one before its START nor the one that was opened without a step; a crash does not matter."""
    harness = start(every)
    if opened:
        harness.ask(Open(session_id="a"), creates_session=True)
    else:
        harness.ask(add(1))
        harness.ask(add(2))
    assert code(harness.ask(add(BAD, start=not opened))) == "internal"
    assert not left(store)
    for engine in (harness, start(every)):
        assert code(engine.ask(add(5), creates_session=False)) == "session_not_found"
    assert total(harness.ask(add(6, start=True), creates_session=False)) == 6
    assert total(harness.ask(add(1), creates_session=False)) == 7


@STORES
@pytest.mark.parametrize("is_open", [True, False])
def test_a_start_that_waits_after_a_first_step_that_failed_begins(
    every: int, is_open: bool, start: Start
) -> None:
    """Only the steps before it were meant to follow the one that failed."""
    harness = start(every)
    if is_open:
        harness.ask(add(1))
    steps = [add(BAD, start=is_open), add(2), add(10, start=True), add(20)]
    sent = [harness.submit(step, creates_session=not is_open) for step in steps]
    harness.run()
    answers = [harness.answer(request_id) for request_id in sent]
    assert [code(answer) for answer in answers[:2]] == ["internal", "session_not_found"]
    assert [total(answer) for answer in answers[2:]] == [10, 30]
    is_told = harness.events[sent[2]].opened_until is not None
    assert is_told is not is_open
    assert (
        total(start(every).ask(add(5), creates_session=False) if every else harness.ask(add(5)))
        == 35
    )


@pytest.mark.parametrize("every", [0])
def test_however_many_starts_wait_that_are_refused(every: int, start: Start) -> None:
    """Each gets its own refusal, and the one that can begin does."""
    harness = start(every, max_sequence_job_queue_size=2000)
    harness.ask(add(1))
    steps = [add(2, end=True), *[add(1, start=True, turn=7)] * 999, add(3, start=True)]
    sent = [harness.submit(step) for step in steps]
    harness.run()
    assert {code(harness.answer(request_id)) for request_id in sent[1:-1]} == {"turn_gap"}
    assert [total(harness.answer(sent[index])) for index in (0, -1)] == [3, 3]


@pytest.mark.parametrize("every", [3])
def test_a_first_step_that_fails_after_an_end_leaves_its_answer(every: int, start: Start) -> None:
    """The END can still be repeated."""
    harness = start(every)
    harness.ask(add(1, turn=1))
    last = harness.ask(add(2, turn=2, end=True))
    assert code(harness.ask(add(BAD), creates_session=True)) == "internal"
    again = start(every).ask(add(2, turn=2, end=True), creates_session=False)
    assert again == last | {"replayed": True}


@pytest.mark.parametrize("every", [1, 3])
def test_a_start_that_fails_ends_the_sequence_whenever_an_engine_dies(
    every: int, start: Start, store: MortalStore
) -> None:
    """The sequence before it does not come back, at no store call."""
    script = [add(1), add(2), add(BAD, start=True), add(5), add(6, start=True), add(7)]
    died, num_deaths = True, 0
    while died:
        store.delete("states-model")
        store.num_left = num_deaths
        answers, died = talk(start, script, every, 1)
        store.num_left = None
        found = [code(answer) if "error" in answer else total(answer) for answer in answers]
        assert found == [1, 3, "internal", "session_not_found", 6, 13], num_deaths
        num_deaths += 1
    assert num_deaths > len(script)
