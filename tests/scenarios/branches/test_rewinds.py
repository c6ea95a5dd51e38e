"""Rewinds: what a session with a shortened history says, and what it keeps."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest

from tests.support.branching import (
    QUESTIONS,
    cached,
    check,
    code,
    fork,
    log_of,
    opened,
    rewind,
    say,
)
from ts_stateful.language.network.load import Model
from ts_stateful.protocol.requests import Cancel, Continue, Fork, Info, Prompt, Rewind


def test_a_rewound_session_is_what_it_was(model: Model) -> None:
    """Turn for turn back, to the same log, where the same question gets the same answer."""
    harness = opened(model)
    logs, texts = [log_of(harness)], []
    for question in QUESTIONS:
        texts.append(say(harness, "s", question)["text"])
        logs.append(log_of(harness))
    for turn in (2, 1, 0):
        answer = rewind(harness, turn)
        assert answer == {"session_id": "s", "turn": turn, "tokens": len(logs[turn])}
        assert log_of(harness) == logs[turn]
        again = say(harness, "s", QUESTIONS[turn])
        assert (again["text"], again["turn"]) == (texts[turn], turn + 1)
        check(harness, "s")
        rewind(harness, turn)


def test_what_the_template_only_appends_to_stays_computed(plain: Model) -> None:
    """After a rewind nothing of what is left has to be computed again."""
    harness = opened(plain)
    for question in QUESTIONS:
        say(harness, "s", question)
    tokens = rewind(harness, 1)["tokens"]
    assert cached(say(harness, "s", "Else?")) == tokens


def test_forking_and_rewinding_are_uses(plain: Model) -> None:
    """They postpone expiry as a prompt does."""
    harness = opened(plain)
    harness.clock.now += 59
    assert "error" not in fork(harness, "f")
    harness.clock.now += 59
    assert "error" not in rewind(harness, 0)
    harness.clock.now += 59
    assert "error" not in harness.ask(Info(session_id="s"))


def test_records_of_what_is_left_answer_retries_and_the_others_are_gone(plain: Model) -> None:
    """In the fork as in the source; a number that was gone back behind is a new turn."""
    harness = opened(plain)
    for number, question in enumerate(QUESTIONS, start=1):
        say(harness, "s", question, turn=number)
    fork(harness, "f")
    assert say(harness, "f", QUESTIONS[2], turn=3)["replayed"]
    rewind(harness, 1)
    assert say(harness, "s", QUESTIONS[0], turn=1)["replayed"]
    assert code(harness.ask(Continue(session_id="s", turn=2))) == "turn_gap"
    answer = say(harness, "s", "Another one", turn=2)
    assert "replayed" not in answer
    assert harness.ask(Continue(session_id="s", turn=2))["text"] == answer["text"]
    check(harness, "s")


def test_a_failed_turn_is_forgotten_with_what_it_followed(plain: Model) -> None:
    """`continue` does not speak of a failure from before a rewind."""
    harness = opened(plain)
    say(harness, "s", QUESTIONS[0])
    harness.engine.drop(harness.submit(Prompt(session_id="s", prompt="Go", max_new_tokens=900)))
    harness.steps(3)
    harness.clock.now += 10.1
    harness.engine.tick()
    assert "rolled back" in harness.ask(Continue(session_id="s", turn=2))["error"]["message"]
    rewind(harness, 1)
    assert "there is no" in harness.ask(Continue(session_id="s", turn=2))["error"]["message"]


def test_going_back_to_where_one_is_changes_nothing(plain: Model) -> None:
    """So a rewind may be repeated."""
    harness = opened(plain)
    say(harness, "s", QUESTIONS[0])
    log, kv = log_of(harness), harness.engine.table.get("s").state.kv.length
    for _ in range(2):
        assert rewind(harness, 1)["turn"] == 1
    assert log_of(harness) == log
    assert harness.engine.table.get("s").state.kv.length == kv


def test_a_busy_session_cannot_go_back(plain: Model) -> None:
    """Neither in a turn nor before one that waits; cancelled, it can."""
    harness = opened(plain)
    say(harness, "s", QUESTIONS[0])
    harness.submit(Prompt(session_id="s", prompt="Go", max_new_tokens=900, ignore_eos=True))
    harness.steps(3)
    answer = harness.last(harness.submit(Rewind(session_id="s", to_turn=0)))
    assert code(answer) == "turn_gap"
    assert "cancel it or wait" in answer["error"]["message"]
    harness.ask(Cancel(session_id="s"))
    assert rewind(harness, 0)["turn"] == 0


@pytest.mark.parametrize(
    ("make", "field"),
    [
        (lambda name, turn: Fork(session_id=name, new_session_id="f", at_turn=turn), "at_turn"),
        (lambda name, turn: Rewind(session_id=name, to_turn=turn), "to_turn"),
    ],
)
def test_turns_and_sessions_that_there_are_not(
    plain: Model, make: Callable[[str, int], Fork | Rewind], field: str
) -> None:
    """A turn that was never taken is a gap; a session tells what became of it; nothing is opened."""
    harness = opened(plain)
    say(harness, "s", QUESTIONS[0])
    answer = harness.ask(make("s", 2))
    assert (code(answer), answer["error"]["field"]) == ("turn_gap", field)
    assert code(harness.ask(make("never", 0))) == "session_not_found"
    harness.open("closed")
    harness.close("closed")
    assert code(harness.ask(make("closed", 0))) == "session_closed"
    harness.clock.now += 61
    assert code(harness.ask(make("s", 0))) == "session_expired"
    assert len(harness.engine.table) == 0


@pytest.mark.parametrize("leave", ["to_host", "to_record"])
def test_a_session_that_was_evicted_can_be_forked_and_rewound(model: Model, leave: str) -> None:
    """What is not on the device is not copied, and what is in host memory is cut back there."""
    harness = opened(model)
    for question in QUESTIONS[:2]:
        say(harness, "s", question)
    getattr(harness.engine.table.get("s").state, leave)()
    assert cached(fork(harness, "f")) == 0
    rewind(harness, 1)
    for name in ("s", "f"):
        say(harness, name, QUESTIONS[2])
        check(harness, name)


def test_a_history_is_kept_once(plain: Model) -> None:
    """Every turn holds what it added, not the conversation up to it."""
    harness = opened(plain)
    for question in QUESTIONS:
        say(harness, "s", question)
    context, turns = harness.engine.table.get("s").state, harness.engine.table.get("s").state.turns
    deltas = [context.opening, *(turn.delta for turn in turns)]
    assert sum(len(delta.ids) for delta in deltas) <= len(context.log) + 1
    assert sum(len(delta.rendered) for delta in deltas) == len(context.dialogue.rendered)


@pytest.mark.parametrize("seed", range(3))
def test_no_sequence_of_forks_and_rewinds_makes_a_reply_inexact(model: Model, seed: int) -> None:
    """Whatever is copied, forgotten and evicted in whatever order."""
    harness, chance = opened(model, maxNumSequence=4), random.Random(seed)
    names = ["s"]
    for number in range(16):
        name = chance.choice(names)
        turns = len(harness.engine.table.get(name).state.turns)
        action = chance.choice(["say", "say", "fork", "rewind", "evict"])
        if action == "say":
            say(harness, name, QUESTIONS[number % 3])
            check(harness, name)
        elif action == "fork" and len(names) < 4:
            names.append(f"f{number}")
            fork(harness, names[-1], name, at_turn=chance.randint(0, turns))
        elif action == "rewind":
            rewind(harness, chance.randint(0, turns), name)
        elif action == "evict":
            harness.engine.table.evict_idle()
