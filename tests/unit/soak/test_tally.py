"""The counts of a soak: latencies, failures, and what may be compared."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

from tests.soak.plan import PHASES, QUICK, Budget, Plan
from tests.soak.script import Script
from tests.soak.talk import Answers, Opening, Past, Said, picture
from tests.soak.tally import Tally, Wrong, check
from ts_stateful.protocol.errors import QueueFull

GREEDY = Said("What color is it?", (), (("max_new_tokens", 4),))
SAMPLED = replace(GREEDY, options=(("temperature", 1.0),))
RED = Past(GREEDY, "red", "stop", 2)


class Clock:
    """Time that passes when it is told to."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def test_latencies_are_those_of_the_phase_in_which_a_request_began() -> None:
    """Half of them take at most the p50; the p99 is a value that was measured."""
    clock = Clock()
    tally = Tally(clock)
    for phase in ("calm", "kills"):
        tally.phase = phase
        for seconds in range(1, 101):
            with tally.timed("turn"):
                clock.now += seconds / 1000
    assert tally.latencies("warm-up") == {}
    turn = tally.latencies("calm")["turn"]
    assert (turn.size, turn.p50_ms, turn.p99_ms, turn.max_ms) == (100, 50.0, 99.0, 100.0)


def test_a_request_that_fails_is_counted_and_not_timed() -> None:
    """With its error, and what was done before."""
    tally = Tally()
    with pytest.raises(Wrong), tally.timed("turn"):
        check(False, "no answer")
    tally.fail("ask", "calm-1-2 (open, ask)", Wrong("no answer"))
    assert tally.latencies("") == {}
    assert tally.num_failures == 1
    failure = tally.failures[0]
    assert (failure.during, failure.error, failure.what) == ("ask", "Wrong", "no answer")


def test_repeated_requests_are_counted_by_their_error() -> None:
    """By its code, or by what broke."""
    tally = Tally()
    tally.phase = "calm"
    tally.repeated(QueueFull("full"))
    tally.repeated(ConnectionResetError())
    assert tally.counts("repeated requests") == {
        "calm: ConnectionResetError": 1,
        "calm: queue_full": 1,
    }


def test_a_budget_of_acts_does_not_depend_on_time() -> None:
    """As many as there are, and not one more."""
    budget = Budget("acts", 3, Clock())
    assert [budget.take() for _ in range(5)] == [True, True, True, False, False]
    assert (budget.used, budget.share) == (3, 1.0)


def test_a_budget_of_seconds_ends_with_them() -> None:
    """However much is done meanwhile."""
    clock = Clock()
    budget = Budget("s", 10.0, clock)
    assert all(budget.take() for _ in range(100))
    clock.now = 10.0
    assert not budget.take()


def test_phases_are_the_whole_of_a_soak() -> None:
    """The last one alone has kills: one in every twenty seconds of it, unless somebody says how many."""
    assert sum(phase.share for phase in PHASES) == pytest.approx(1.0)
    assert [phase.kills for phase in PHASES] == [False, False, True]
    assert Plan(seed=1, minutes=10).num_kills == 15
    assert QUICK.num_kills == 2


def test_the_same_answer_in_the_same_state_is_right() -> None:
    """Another one is wrong; in another state it is another question."""
    answers = Answers()
    answers.check("a", RED)
    answers.check("a", RED)
    answers.check("b", replace(RED, text="blue"))
    assert answers.num_compared == 1
    with pytest.raises(Wrong, match="blue"):
        answers.check("a", replace(RED, text="blue"))


def test_a_cancelled_answer_is_the_beginning_of_the_other_one() -> None:
    """Whichever came first."""
    answers = Answers()
    for text, reason in (
        ("r", "cancelled"),
        ("re", "cancelled"),
        ("red", "stop"),
        ("", "cancelled"),
    ):
        answers.check("a", replace(RED, text=text, finish_reason=reason))
    with pytest.raises(Wrong, match="beginning"):
        answers.check("a", replace(RED, text="b", finish_reason="cancelled"))


def test_what_follows_from_nothing_is_not_compared() -> None:
    """Sampling without a seed."""
    answers = Answers()
    for text in ("red", "blue"):
        answers.check("a", replace(RED, said=SAMPLED, text=text))
    assert answers.num_compared == 0


def test_the_same_numbers_make_the_same_script() -> None:
    """And the same pictures."""
    first, second = (Script(random.Random(7)) for _ in range(2))
    for _ in range(50):
        assert first.opening() == second.opening()
        assert first.question() == second.question()
    assert picture(3).startswith(b"\x89PNG")
    assert picture(3) != picture(4)
    assert Opening() == Opening(None, (), None)
