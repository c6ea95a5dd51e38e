"""Requests that an engine had when it died, at the next one: nothing is lost or done twice."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec import structs

from tests.support.harness import Harness
from tests.support.store_engines import ask, code, expire
from ts_stateful.protocol.events import EventKind
from ts_stateful.protocol.requests import Close, Continue, Fork, Open, Prompt, Rewind

SAMPLED: dict[str, Any] = {"max_new_tokens": 20, "temperature": 1.0, "seed": 3}
PENALIZED: dict[str, Any] = {
    "frequency_penalty": 1.5,
    "repetition_penalty": 1.2,
    "logit_bias": {301: 4.0},
    "min_p": 0.01,
    "logprobs": True,
    "top_logprobs": 2,
}


@pytest.mark.parametrize(
    "settings",
    [SAMPLED, {**SAMPLED, **PENALIZED}, {**PENALIZED, "max_new_tokens": 20, "ignore_eos": True}],
    ids=["sampled", "penalized", "greedy"],
)
def test_a_turn_is_taken_up_after_what_was_sent(
    first: Harness, second: Harness, settings: dict[str, Any]
) -> None:
    """The stream goes on where it stood: the same text and log-probabilities, and no id that was sent is chosen again."""
    first.open("s")
    whole = first.ask(ask(**settings, turn=1))
    first.ask(Rewind(session_id="s", to_turn=0))
    sent = first.submit(ask(**settings, stream=True))
    first.steps(12)
    before = first.events[sent]
    ids = [token for event in before for token in event.token_ids]
    text = "".join(first.parts(sent))
    assert 4 < len(ids) < 20
    request = second.submit(
        ask(**settings, stream=True),
        is_retry=True,
        skip=len(text),
        replay=tuple(ids),
        replay_logprobs=tuple(one for event in before for one in event.logprobs),
    )
    second.run()
    rest = "".join(second.parts(request)) + second.last(request)["text"]
    assert text + rest == whole["text"]
    documents = first.documents(sent) + second.documents(request)
    logprobs = [one for document in documents for one in document.get("logprobs") or ()]
    for mine, one in zip(logprobs, whole.get("logprobs", ()), strict=True):
        # The second engine computed the rest from states of another pass.
        assert mine["logprob"] == pytest.approx(one["logprob"], abs=1e-4)
        assert {**mine, "logprob": 0, "top_logprobs": []} == {
            **one,
            "logprob": 0,
            "top_logprobs": [],
        }
    assert bool(logprobs) == settings.get("logprobs", False)
    again = second.ask(ask(**settings, turn=1))
    assert again["replayed"]
    assert again.get("logprobs", []) == logprobs
    new = [token for event in second.events[request] for token in event.token_ids]
    assert (*ids, *new) == second.engine.table.get("s").state.turns[0].delta.ids[-20:][
        : len(ids) + len(new)
    ]


@pytest.mark.parametrize("command", [Open(session_id="s"), ask()])
def test_an_answer_that_was_lost_is_given_again(
    first: Harness, second: Harness, command: Open | Prompt
) -> None:
    """An opening that was done when the engine died is not done twice."""
    before = first.ask(command, creates_session=True)
    request = next(iter(first.events))
    second._ids = iter([int(request[1:])])  # type: ignore[assignment]
    after = second.ask(command, creates_session=True, is_retry=True)
    assert after["session_id"] == before["session_id"]
    assert second.engine.table.get("s").state.turns == first.engine.table.get("s").state.turns


def test_a_fork_that_was_made_is_not_made_twice(first: Harness, second: Harness) -> None:
    """Also if nobody received the answer; and one that was not made is made now."""
    first.open("s")
    first.ask(ask())
    fork = Fork(session_id="s", new_session_id="f")
    request = first.submit(fork, creates_session=True)
    first.run()
    second._ids = iter([int(request[1:]), 90, 91])  # type: ignore[assignment]
    again = second.ask(fork, creates_session=True, is_retry=True)
    assert (again["session_id"], again["turn"], again["forked_from"]) == ("f", 1, "s")
    other = structs.replace(fork, new_session_id="g")
    assert second.ask(other, creates_session=True, is_retry=True)["session_id"] == "g"
    assert code(second.ask(fork, creates_session=True, is_retry=True)) == "session_exists"


def test_what_never_got_there_begins_again(second: Harness) -> None:
    """An `open` that the engine had when it died, but not in the store yet."""
    assert (
        second.ask(Open(session_id="s"), creates_session=True, is_retry=True)["session_id"] == "s"
    )


def test_a_close_that_was_done_is_answered_again(first: Harness, second: Harness) -> None:
    """By the next engine; another close of that session is refused."""
    first.open("s")
    first.close("s")
    assert second.ask(Close(session_id="s"), is_retry=True) == {"session_id": "s", "closed": True}
    assert code(second.ask(Close(session_id="s"))) == "session_closed"


@pytest.mark.parametrize("expires", [False, True])
def test_an_open_that_was_lost_does_not_meet_an_earlier_session_of_its_id(
    first: Harness, second: Harness, expires: bool
) -> None:
    """A session of that id has ended long ago; the one that the dead engine was asked for begins."""
    first.open("s")
    if expires:
        expire(first)
    else:
        first.close("s")
    assert (
        second.ask(Open(session_id="s"), creates_session=True, is_retry=True)["session_id"] == "s"
    )
    assert second.ask(ask())["turn"] == 1


def test_a_pulled_turn_sends_its_ids_to_the_worker(first: Harness) -> None:
    """Until it is over: what a `continue` has shown is chosen for good."""
    first.open("s")
    pulled = first.submit(ask(max_new_tokens=12), pull=True)
    first.steps(6)
    first.ask(Continue(session_id="s", turn=1, after=0))
    events = first.events[pulled]
    assert [event.more for event in events if event.kind is EventKind.LAST] == [True]
    ids = [token for event in events for token in event.token_ids]
    assert ids == list(first.engine.table.get("s").state.turns[0].delta.ids[-12:][: len(ids)])
    assert events[-1].kind is EventKind.OVER
