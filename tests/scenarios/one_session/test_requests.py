"""What each type of request asks of an engine, beside the turns that it asks for."""

from __future__ import annotations

from random import Random

import pytest

from tests.support.asking import ask, busy, code
from tests.support.harness import Harness
from tests.support.tiny import llava
from ts_stateful.language.network.load import Model
from ts_stateful.language.text.reply import ReplyText
from ts_stateful.protocol.errors import MediaInvalid
from ts_stateful.protocol.requests import Cancel, Close, Continue, Hello, Image, Open, Prompt


def test_continue_gives_what_is_behind_the_characters(harness: Harness) -> None:
    """A pulled turn is the concatenation of what `continue` gives, before and after its commit."""
    request = harness.submit(ask(stream=True), pull=True)
    harness.pump()
    first = harness.last(request)
    assert first == {"text": "", "session_id": "s", "turn": 1, "next": 0, "more": True}
    text, last = "", first
    while last.get("more"):
        pull = harness.submit(Continue(session_id="s", turn=1, after=len(text)))
        harness.steps(1)
        harness.clock.now += 0.011
        harness.engine.tick()
        last = harness.last(pull)
        text += last["text"]
        assert last["next"] == len(text)
    assert last["finish_reason"] == "length"
    assert last["usage"]["completion_tokens"] == 12
    assert harness.ask(Continue(session_id="s", turn=1, after=3))["text"] == text[3:]


def test_continue_waits_a_moment_for_the_next_token(harness: Harness) -> None:
    """It is answered as soon as there is text, or after some milliseconds without."""
    harness.submit(ask(max_new_tokens=50))
    harness.pump()
    pull = harness.submit(Continue(session_id="s", turn=1))
    assert pull not in harness.events
    harness.engine.tick()
    assert harness.engine.next_deadline() == pytest.approx(harness.clock.now + 0.010)
    harness.clock.now += 0.010
    harness.engine.tick()
    assert harness.last(pull) == {"text": "", "next": 0, "more": True}


def test_continue_of_a_turn_that_does_not_exist_is_a_gap(harness: Harness) -> None:
    """There is nothing to continue."""
    assert code(harness.ask(Continue(session_id="s", turn=1))) == "turn_gap"


def test_continue_keeps_a_pulled_turn_alive(harness: Harness) -> None:
    """Each pull starts the time anew after which an abandoned turn is rolled back."""
    harness.submit(ask(max_new_tokens=400), pull=True)
    for _ in range(4):
        harness.steps(2)
        harness.clock.now += 8
        harness.engine.tick()
        harness.submit(Continue(session_id="s", turn=1))
        harness.clock.now += 0.02
        harness.engine.tick()
    assert busy(harness)
    harness.clock.now += 10.1
    harness.engine.tick()
    assert not busy(harness)
    gone = harness.ask(Continue(session_id="s", turn=1))
    assert "rolled back" in gone["error"]["message"]


def test_cancel_ends_the_turn_and_keeps_its_text(harness: Harness) -> None:
    """What was generated is committed with `finish_reason` `cancelled`."""
    request = harness.submit(ask(max_new_tokens=300))
    harness.steps(20)
    assert harness.ask(Cancel(session_id="s")) == {"session_id": "s", "cancelled": True, "turn": 1}
    answer = harness.last(request)
    assert answer["finish_reason"] == "cancelled"
    assert 0 < answer["usage"]["completion_tokens"] < 300
    assert harness.ask(ask())["turn"] == 2


def test_cancel_before_the_first_token_commits_an_empty_reply(harness: Harness) -> None:
    """A turn that is cancelled while it prefills has happened, with nothing said."""
    request = harness.submit(ask("word " * 100))
    harness.steps(1)
    harness.ask(Cancel(session_id="s"))
    assert harness.last(request)["text"] == ""
    assert harness.ask(ask())["turn"] == 2


@pytest.mark.parametrize("command", [Cancel(session_id="s"), Close(session_id="s")])
def test_a_turn_whose_text_cannot_be_told_ends_all_the_same(
    command: Cancel | Close, harness: Harness, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever ends it is answered, and so is who waits for it; the session goes on."""

    def fail(reply: ReplyText) -> str:
        raise ValueError("no such id")

    running = harness.submit(ask())
    harness.steps(3)
    monkeypatch.setattr(ReplyText, "finish", fail)
    answer = harness.ask(command)
    assert answer.get("cancelled", answer.get("closed")) is True
    assert code(harness.last(running)) == "internal"
    monkeypatch.undo()
    if isinstance(command, Cancel):
        assert harness.ask(ask())["turn"] == 1
    assert not any(session.busy for session in harness.engine.table)


def test_cancel_without_a_turn_says_so(harness: Harness) -> None:
    """There was nothing to cancel."""
    assert harness.ask(Cancel(session_id="s"))["cancelled"] is False


def test_close_cancels_what_runs_and_refuses_what_waits(harness: Harness) -> None:
    """Everybody gets an answer, and the session is gone."""
    running, waiting = harness.submit(ask(max_new_tokens=300)), harness.submit(ask())
    harness.steps(5)
    assert harness.ask(Close(session_id="s")) == {"session_id": "s", "closed": True}
    assert harness.last(running)["finish_reason"] == "cancelled"
    assert code(harness.last(waiting)) == "session_closed"
    assert code(harness.ask(ask())) == "session_closed"
    assert harness.engine.table.device_bytes == 0


def test_four_different_errors_for_four_kinds_of_absence(harness: Harness) -> None:
    """Unknown, expired and closed sessions are told apart, and a live one is not opened twice."""
    assert code(harness.ask(Prompt(session_id="never", prompt="x"))) == "session_not_found"
    assert code(harness.ask(Open(session_id="s"), creates_session=True)) == "session_exists"
    harness.close("s")
    assert code(harness.ask(ask())) == "session_closed"
    harness.open("t")
    harness.clock.now += 61
    assert code(harness.ask(Prompt(session_id="t", prompt="x"))) == "session_expired"


def test_a_prompt_without_a_session_opens_one(model: Model) -> None:
    """Its events carry until when the session lives."""
    harness = Harness(model)
    request = harness.submit(
        Prompt(session_id="made", prompt="Hi", stream=True, max_new_tokens=3), creates_session=True
    )
    harness.run()
    assert harness.last(request)["session_id"] == "made"
    assert {event.opened_until for event in harness.events[request]} == {1_700_000_600}


def test_an_open_that_fails_was_never_there() -> None:
    """A session whose image could not be had does not exist, and what waited for it learns that."""
    harness = Harness(llava())
    harness.refuse_image = MediaInvalid("not an image", field="images[0].url")
    request = harness.submit(Open(session_id="s", images=(Image(url="x"),)), creates_session=True)
    waiting = harness.submit(ask())
    harness.run()
    assert harness.last(request)["error"]["field"] == "images[0].url"
    assert code(harness.last(waiting)) == "session_not_found"
    assert code(harness.ask(ask())) == "session_not_found"
    assert "error" not in harness.open("s")


def test_too_many_images_are_refused_before_any_fetch() -> None:
    """The count is checked first."""
    harness = Harness(llava())
    many = tuple(Image(url=str(index)) for index in range(9))
    assert (
        code(harness.ask(Open(session_id="s", images=many), creates_session=True))
        == "invalid_request"
    )
    assert harness.executor.jobs == []


def test_a_model_that_sees_nothing_takes_no_images(harness: Harness) -> None:
    """The error names the field."""
    answer = harness.ask(ask(images=(Image(url="x"),)))
    assert answer["error"]["field"] == "images"


def test_hello_tells_who_serves(harness: Harness) -> None:
    """And within which limits; it lists no sessions."""
    hello = harness.ask(Hello())
    assert hello["profile"] == "continuous"
    assert hello["limits"]["max_sessions"] == 8
    assert hello["chat_template"] is True


def test_expiry_runs_by_itself(harness: Harness) -> None:
    """A session that nobody uses is gone when its time is up, and its memory with it."""
    harness.ask(ask())
    assert harness.engine.table.device_bytes > 0
    harness.engine.tick()
    while len(harness.engine.table):
        before = harness.clock.now
        harness.clock.now = harness.engine.next_deadline()
        assert before < harness.clock.now <= before + 1
        harness.engine.tick()
    assert harness.clock.now == pytest.approx(1060)
    assert harness.engine.table.device_bytes == 0


def test_a_turn_at_the_moment_of_expiry_is_answered_or_refused(harness: Harness) -> None:
    """A thousand turns around it, before or after the engine has looked at its clock: none waits for ever."""
    rng, answers = Random(7), []
    for number in range(1000):
        name = f"s{number}"
        harness.open(name)
        harness.clock.now += 60 + rng.uniform(-1e-6, 1e-6) * rng.choice((0, 1))
        if rng.random() < 0.5:
            harness.engine.tick()
        answer = harness.ask(Prompt(session_id=name, prompt="Hello", max_new_tokens=1))
        answers.append(code(answer) if "error" in answer else answer["finish_reason"])
        harness.ask(Close(session_id=name))
        harness.engine.tick()
    assert set(answers) == {"session_expired", "length"}
    assert len(harness.engine.table) == 0


def test_the_last_turn_can_be_read_and_cancelled_past_the_end_of_its_session(
    harness: Harness,
) -> None:
    """A lifetime that ends in a turn lets it finish, so a client that pulls its reply receives it."""
    harness.ask(Open(session_id="t", ttl_s=50), creates_session=True)
    prompt = harness.submit(Prompt(session_id="t", prompt="Hello", max_new_tokens=20))
    harness.steps(3)
    harness.clock.now += 55
    harness.engine.tick()
    pull = harness.submit(Continue(session_id="t", turn=1))
    refused = harness.submit(Prompt(session_id="t", prompt="And then?"))
    harness.steps(2)
    cancel = harness.submit(Cancel(session_id="t"))
    harness.run()
    assert code(harness.last(refused)) == "session_expired"
    assert harness.last(prompt)["finish_reason"] == "cancelled"
    assert harness.last(pull)["text"] != ""
    assert harness.last(prompt)["text"].startswith(harness.last(pull)["text"])
    assert harness.last(cancel)["cancelled"] is True
    assert code(harness.ask(Continue(session_id="t", turn=1))) == "session_expired"
