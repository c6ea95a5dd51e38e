"""Numbered steps that are sent again: which step they repeat, and what they are answered."""

from __future__ import annotations

from typing import Any

import pytest

from tests.support.state_harness import StateHarness
from tests.support.sums import EVERY, MortalStore, Start, add, code, starter, total
from ts_stateful.protocol.events import Encoding
from ts_stateful.protocol.requests import Fork, Request
from ts_stateful.recurrent.lookup import EndedAnswers
from ts_stateful.recurrent.step_records import Answered

STORES = pytest.mark.parametrize("every", [0, 1, 3])  # 0: none


def starting(every: int) -> Start:
    """Return a starter of engines, with a store if they commit."""
    return starter(MortalStore() if every else None)


def at_once(harness: StateHarness, *commands: Request) -> list[dict[str, Any]]:
    """Return the answers to requests that are sent together."""
    sent = [harness.submit(command) for command in commands]
    harness.run()
    return [harness.answer(request_id) for request_id in sent]


@STORES
@pytest.mark.parametrize("start", [True, False])
def test_steps_of_the_next_sequence_are_not_those_of_the_one_that_runs(
    every: int, start: bool
) -> None:
    """Their numbers are the same; an END, or a later START, is between them."""
    harness = starting(every)(every)
    first: Any = {"turn": 1, "start": start}
    last: Any = {"turn": 2, "end": True}
    steps = (add(1, **first), add(2, **last), add(10, **first), add(20, **last))
    assert [total(answer) for answer in at_once(harness, *steps)] == [1, 3, 10, 30]


@STORES
def test_a_start_between_steps_of_one_number_parts_them(every: int) -> None:
    """Without an END, too; a step is recognised after its own START."""
    harness = starting(every)(every)
    first: Any = {"turn": 1, "start": True}
    second: Any = {"turn": 2}
    steps = [add(1, **first), add(2, **second), add(10, **first), add(20, **second)]
    assert [total(answer) for answer in at_once(harness, *steps)] == [1, 3, 10, 30]
    steps = [add(5, **first), add(5, **first), add(6, **first), add(7, **second), add(7, **second)]
    assert [total(answer) for answer in at_once(harness, *steps)] == [5, 5, 6, 13, 13]


@STORES
def test_a_last_step_that_is_sent_again_is_answered_again(every: int) -> None:
    """As often as it is sent, and then the next sequence begins."""
    harness = starting(every)(every)
    harness.ask(add(1, turn=1))
    last = harness.ask(add(2, turn=2, end=True))
    for _ in range(2):
        again = harness.ask(add(2, turn=2, end=True), creates_session=False)
        assert again == last | {"replayed": True}
    assert code(harness.ask(add(3, turn=2, end=True))) == "turn_gap"  # another step
    assert total(harness.ask(add(5, turn=1))) == 5
    assert total(harness.ask(add(2, turn=2, end=True))) == 7


@STORES
def test_an_end_is_no_repetition_of_a_step_without_one(every: int) -> None:
    """Whatever its inputs are; the sequence goes on, here and in another engine."""
    start = starting(every)
    harness = start(every)
    harness.ask(add(1, turn=1))
    last = harness.ask(add(2, turn=2))
    for engine in (harness, start(every)) if every else (harness,):
        for number in (2, 3):
            assert code(engine.ask(add(number, turn=2, end=True))) == "turn_gap"
        assert engine.ask(add(2, turn=2)) == last | {"replayed": True}
    assert total(engine.ask(add(3, turn=3, end=True))) == 6


def test_the_answer_to_a_last_step_is_also_known_to_the_next_engine() -> None:
    """The store keeps it."""
    start = starting(3)
    start(3).ask(add(1, turn=1))
    last = start(3).ask(add(2, turn=2, end=True))
    again = start(3).ask(add(2, turn=2, end=True), creates_session=False)
    assert again == last | {"replayed": True}


@STORES
@pytest.mark.parametrize("end", [True, False])
def test_a_first_step_with_start_that_is_sent_again_does_not_run_again(
    every: int, end: bool
) -> None:
    """One with other inputs is the first step of another sequence."""
    start = starting(every)
    harness = start(every)
    first = harness.ask(add(1, turn=1, start=True, end=end))
    assert harness.ask(add(1, turn=1, start=True, end=end)) == first | {"replayed": True}
    assert harness.num_calls == 1
    if every:  # another engine knows it, too
        assert start(every).ask(add(1, turn=1, start=True, end=end)) == first | {"replayed": True}
    assert total(harness.ask(add(4, turn=1, start=True, end=end))) == 4


def test_an_answer_of_an_ended_sequence_is_not_that_of_a_later_one() -> None:
    """The id has been in use since."""
    harness = starting(0)(0)
    harness.ask(add(1, turn=1))
    harness.ask(add(2, turn=2, end=True))
    harness.ask(add(5, end=True))
    assert code(harness.ask(add(2, turn=2, end=True))) == "turn_gap"


def test_the_answers_of_ended_sequences_are_bounded() -> None:
    """The oldest are forgotten first, and those that nothing could repeat are not kept."""
    ended = EndedAnswers(most_bytes=10_000)
    for number in range(20):
        ended.add(f"s{number}", Answered((), b"{}", closed=True, identity=b"1"))
    assert [number for number in range(20) if ended.get(f"s{number}")] == list(range(11, 20))
    ended.add("s19", Answered((), b"{}", closed=True))
    ended.add("raw", Answered((), b"1", "text/plain", closed=True, identity=b"1"))
    ended.add("large", Answered((), bytes(20_000), closed=True, identity=b"1"))
    assert not any(ended.get(name) for name in ("raw", "large", "s18", "s19"))


@STORES
def test_a_fork_repeats_the_last_step_of_its_source_as_its_own(every: int) -> None:
    """By another engine, too."""
    start = starting(every)
    harness = start(every)
    harness.ask(add(1, "f", turn=1))
    last = harness.ask(add(2, "f", turn=2))
    assert "error" not in harness.ask(Fork(session_id="f", new_session_id="ff"))
    expected = last | {"session_id": "ff", "replayed": True}
    assert harness.ask(add(2, "ff", turn=2), creates_session=False) == expected
    if every:
        assert start(every).ask(add(2, "ff", turn=2), creates_session=False) == expected
    assert total(harness.ask(add(3, "ff", turn=3))) == 6


@EVERY
def test_a_fork_of_a_raw_step_has_nothing_to_repeat(every: int) -> None:
    """Neither here nor in another engine is the fork's own answer taken for it."""
    start = starting(every)
    harness = start(every)
    harness.submit(add(1, "f", turn=1), encoding=Encoding.RAW)
    harness.run()
    assert "error" not in harness.ask(Fork(session_id="f", new_session_id="ff"))
    for engine in (harness, start(every)):
        assert code(engine.ask(add(1, "ff", turn=1), creates_session=False)) == "turn_gap"


def test_each_request_for_a_step_gets_its_own_id() -> None:
    """While the step waits, and from the record; a request without an id gets none."""
    harness = starting(0)(0)
    ids = ("A", "B", None)
    answers = at_once(harness, *(add(1, turn=1, id=name) for name in ids))
    answers += [harness.ask(add(1, turn=1, id=name)) for name in ids]
    assert [answer.get("id") for answer in answers] == [*ids, *ids]
    assert [answer.get("replayed", False) for answer in answers] == [False] * 3 + [True] * 3
    assert [total(answer) for answer in answers] == [1] * 6
