"""Forks and branches of sessions in which something is being written, prepared or refused."""

from __future__ import annotations

from typing import Any

import pytest

from tests.support.harness import Harness, reference_reply
from tests.support.pictures import noise
from tests.support.store_engines import FailingStore
from tests.support.tiny import llama, llava
from ts_stateful.language.conversation.turn import TurnStatus
from ts_stateful.language.network.load import Model
from ts_stateful.protocol.chat import Chat, Recall, Respond, Said
from ts_stateful.protocol.requests import Close, Fork, Image, Info, Open, Prompt, Rewind
from ts_stateful.protocol.response_format import Choice, Regex

TOKENS = 12


@pytest.fixture(scope="module")
def model() -> Model:
    return llama()


@pytest.fixture
def store() -> FailingStore:
    return FailingStore()


@pytest.fixture
def harness(model: Model, store: FailingStore) -> Harness:
    """An engine with a store and a queue of one prompt, which has answered a response in the session `s`."""
    harness = Harness(model, {"maxSequenceJobQueueSize": 1}, store=store)
    harness.ask(respond("s", "Tell me a story.", after=0), creates_session=True)
    return harness


def respond(session: str, text: str, **fields: Any) -> Respond:
    messages = (Said("user", (text,)),)
    asked = {"note": "{}", "after": 1, "new_session_id": "other", **fields}
    return Respond(session_id=session, messages=messages, max_new_tokens=TOKENS, **asked)


def branch(text: str, **fields: Any) -> Respond:
    return respond("s", text, **{"new_session_id": "branch", "forks": True, **fields})


def run_until_written(harness: Harness) -> None:
    """Runs until the record of a turn of `s` is on its way to the store."""
    session = harness.engine.table.get("s")
    while session.work[0].status is not TurnStatus.COMMITTING:
        harness.hear()
        if harness.engine.busy:
            harness.engine.step()


def error(harness: Harness, request: str) -> Any:
    return harness.last(request).get("error", {}).get("code")


def names(harness: Harness) -> set[str]:
    return {session.session_id for session in harness.engine.table}


def test_a_branch_beside_a_turn_that_is_written_has_its_own_states(
    harness: Harness, model: Model
) -> None:
    """The source's states are of other instructions than its log."""
    harness.submit(respond("s", "And then?", instructions="Sing a song in German now."))
    run_until_written(harness)
    request = harness.submit(branch("Why?"))
    harness.run()
    assert error(harness, request) is None
    reference_reply(model, harness, "branch", TOKENS)


def test_a_fork_beside_a_history_that_is_exchanged_has_its_own_states(
    harness: Harness, model: Model
) -> None:
    """The source's states are of another history than its log."""
    said = Said("user", ("A completely different question, is it not?",))
    harness.submit(Chat(session_id="s", messages=(said,), max_new_tokens=TOKENS))
    run_until_written(harness)
    harness.submit(Fork(session_id="s", new_session_id="f", at_turn=1), creates_session=True)
    harness.run()
    harness.prompt("f", "And then?", max_new_tokens=TOKENS)
    reference_reply(model, harness, "f", TOKENS)


def test_what_is_written_or_prepared_does_not_wait(harness: Harness) -> None:
    """The queue is that of prompts behind the one whose turn it is."""
    harness.submit(Rewind(session_id="s", to_turn=0))
    first = harness.submit(Prompt(session_id="s", prompt="One", response_format=Choice(("a", "b"))))
    second = harness.submit(Prompt(session_id="s", prompt="Two", max_new_tokens=1))
    third = harness.submit(Prompt(session_id="s", prompt="Three", max_new_tokens=1))
    harness.run()
    assert [error(harness, each) for each in (first, second, third)] == [None, None, "queue_full"]


def test_the_idle_time_begins_when_all_is_written(harness: Harness) -> None:
    """Also of a session that goes back to an earlier turn, if the store takes its time."""
    request = harness.submit(Rewind(session_id="s", to_turn=0))
    harness.clock.now += 61
    harness.engine.tick()
    harness.run()
    assert harness.last(request)["turn"] == 0
    assert harness.ask(Info(session_id="s"))["turns"] == 0


def test_a_branch_that_is_refused_leaves_no_session(model: Model, store: FailingStore) -> None:
    """Neither in the table nor in the store; a quota of one turn is enough for a branch."""
    quotas = {"handler": {"quotas": {"turnsInFlight": 1}}}
    harness = Harness(model, quotas, store=store)
    harness.ask(respond("s", "Tell me a story.", after=0), creates_session=True)
    running = harness.submit(respond("s", "And then?"))
    harness.steps(2)
    refused = harness.submit(branch("Why?"))
    harness.run()
    assert error(harness, refused) == "quota_exceeded"
    assert names(harness) == {"s"}
    assert store.list("sessions/branch") == []
    taken = harness.submit(branch("Why?"))
    harness.run()
    assert error(harness, running) is error(harness, taken) is None


def test_a_branch_can_be_closed_before_its_turn_begins(harness: Harness) -> None:
    """Both requests are answered."""
    turn = harness.submit(branch("Why?", response_format=Choice(("a", "b"))))
    closed = harness.submit(Close(session_id="branch"))
    harness.run()
    assert error(harness, turn) == "session_closed"
    assert harness.last(closed) == {"session_id": "branch", "closed": True}


@pytest.mark.parametrize("is_early", [False, True])
def test_a_branch_whose_turn_fails_is_no_session(
    harness: Harness, store: FailingStore, is_early: bool
) -> None:
    """Whether the grammar's thread or the store is faster."""
    turn = harness.submit(branch("Why?", response_format=Regex("(")))
    harness.work(0)  # the look into the store
    harness.hear()
    if is_early:
        harness.work(1)
        harness.hear()
    harness.run()
    assert error(harness, turn) == "invalid_request"
    assert names(harness) == {"s"}
    assert store.list("sessions/branch") == []


def test_a_branch_that_cannot_be_written_may_be_sent_again(
    harness: Harness, store: FailingStore
) -> None:
    """As a turn that cannot be."""
    store.fails = True
    assert harness.ask(branch("Why?"))["error"]["code"] == "store_unavailable"
    store.fails = False
    assert "error" not in harness.ask(branch("Why?"))
    assert harness.ask(Info(session_id="branch"))["turns"] == 2


def test_a_session_that_ends_with_its_answer_takes_no_other_request(harness: Harness) -> None:
    """A stream names it; a request that followed in it left the table in disorder."""
    stream = respond("e", "Why?", after=0, stream=True)
    first = harness.submit(stream, creates_session=True, ephemeral=True)
    harness.steps(4)
    others = [
        harness.submit(command)
        for command in (
            respond("e", "And?", after=None),
            respond("e", "And?", after=None, forks=True),
            Prompt(session_id="e", prompt="And?"),
            Fork(session_id="e", new_session_id="f"),
            Close(session_id="e"),
        )
    ]
    harness.run()
    assert error(harness, first) is None
    assert {error(harness, other) for other in others} == {"session_not_found"}
    harness.clock.now += 1e6
    harness.engine.tick()
    assert names(harness) == set()


def test_a_session_is_not_branched_while_it_is_opened(harness: Harness) -> None:
    """Its images are not there yet."""
    harness.submit(Open(session_id="o", system="Be brief."), creates_session=True)
    branched = harness.submit(respond("o", "Why?", after=None, forks=True))
    harness.run()
    assert error(harness, branched) == "queue_full"
    assert names(harness) == {"s", "o"}


def test_a_session_without_turns_has_no_response(harness: Harness) -> None:
    """It was only opened."""
    harness.open("o")
    assert harness.ask(Recall(session_id="o", turn=None))["error"]["code"] == "session_not_found"


@pytest.mark.parametrize("num_images", [0, 1])
def test_a_response_shows_the_images_of_an_opening(num_images: int) -> None:
    """They come before its own ones, as in a first prompt."""
    model = llava()
    harness = Harness(model)
    harness.open("s", [noise(1)])
    harness.media["more"] = noise(2)
    more = (Image(url="more"),) * num_images
    messages = (Said("user", (*(None,) * num_images, "What color is it?")),)
    answer = harness.ask(
        Respond(session_id="s", messages=messages, images=more, note="{}", max_new_tokens=TOKENS)
    )
    assert "error" not in answer
    reference_reply(model, harness, "s", TOKENS)
    added = Respond(session_id="o", messages=messages, images=more, note="{}", generates=False)
    harness.open("o", [noise(3)])
    assert harness.ask(added)["error"]["field"] == "input"
