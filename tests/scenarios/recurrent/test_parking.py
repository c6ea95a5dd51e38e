"""Parking of sequences: with commits to a store, an idle one leaves memory and goes on exactly."""

from __future__ import annotations

import pytest

from tests.support.sums import EVERY, MortalStore, add, code, starter, total
from ts_stateful.protocol.requests import Fork, Open


@EVERY
def test_parked_sequences_go_on_exactly(every: int) -> None:
    """Whichever of their steps have their states in the store; what grows is as long as it was."""
    harness = starter(MortalStore())(every, max_num_sequence=2)
    sums = dict.fromkeys("abcd", 0)
    for number in range(1, 8):
        for name in sums:
            sums[name] += number
            answer = harness.ask(add(number, name), creates_session=number == 1)
            assert (total(answer), answer["turn"]) == (sums[name], number)
            assert answer["outputs"][1]["data"] == list(range(1, number + 1))
            assert len(harness.engine.table) <= 2


@pytest.mark.parametrize("on_full", ["refuse", None])
def test_without_a_store_or_on_request_they_stay(on_full: str | None) -> None:
    """Nothing could give them back."""
    handler = {} if on_full is None else {"onFull": on_full}
    start = starter(None if on_full is None else MortalStore())
    harness = start(0 if on_full is None else 1, max_num_sequence=2, handler=handler)
    for name in "ab":
        harness.ask(add(1, name), creates_session=True)
    assert code(harness.ask(add(1, "c"), creates_session=True)) == "too_many_sessions"
    assert total(harness.ask(add(2, "a"))) == 3


def test_a_fork_does_not_park_its_source() -> None:
    """It would copy states that are not there any more."""
    harness = starter(MortalStore())(1, max_num_sequence=1)
    harness.ask(add(5), creates_session=True)
    fork = Fork(session_id="a", new_session_id="b")
    assert code(harness.ask(fork)) == "too_many_sessions"
    assert total(harness.ask(add(6))) == 11


def test_turns_in_flight_are_bounded_for_each_principal() -> None:
    """A step beyond them begins no sequence; when an answer is there, the next one runs."""
    quotas = {"turnsInFlight": 2}
    harness = starter(None)(0, handler={"quotas": quotas})
    first = [harness.submit(add(1, name), creates_session=True) for name in "ab"]
    refused = harness.submit(add(1, "c"), creates_session=True)
    again = harness.submit(add(2, "a"))
    for request in (refused, again):
        error = harness.answer(request)["error"]
        assert (error["code"], error["field"]) == (
            "quota_exceeded",
            "handler.quotas.turnsInFlight",
        )
    assert len(harness.engine.table) == 2
    harness.run()
    assert [total(harness.answer(request)) for request in first] == [1, 1]
    assert "error" not in harness.ask(Open(session_id="c"))
    assert total(harness.ask(add(2, "a"))) == 3
