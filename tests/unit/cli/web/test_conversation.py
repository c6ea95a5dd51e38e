"""Conversations of the page, with a server without a model."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support.fake_sessions import FakeSessions, Fault, Turn, reply_to
from ts_stateful.cli.web.conversation import Conversation, Question
from ts_stateful.cli.web.saved import SavedSession
from ts_stateful.client import RetryPolicy, Server, connect
from ts_stateful.protocol.errors import SessionExpired, TooManySessions, TurnGap

_LONG_S = 60.0


@pytest.fixture
def server(url: str) -> Iterator[Server]:
    """A connection without retries."""
    with connect(url, policy=RetryPolicy(max_retries=0)) as server:
        yield server


def ask(conversation: Conversation, prompt: str) -> None:
    """Ask, and wait for the end of the reply."""
    assert conversation.ask(Question(prompt)).wait(_LONG_S)
    assert conversation.finish() is not None


def prompts(conversation: Conversation) -> list[str]:
    """Return the prompts of the committed turns."""
    return [one.prompt for one in conversation.exchanges.values()]


def test_the_first_question_opens_the_session(server: Server, fake: FakeSessions) -> None:
    """Later ones are turns of it, with their figures; the browser keeps the prompts."""
    conversation = Conversation(server)
    assert conversation.ask(Question("one", system="Be short.")).wait(_LONG_S)
    conversation.finish()
    ask(conversation, "two")
    assert [request["system"] for request in fake.of_kind("open")] == ["Be short."]
    assert conversation.exchanges[2].reply == reply_to("two")
    usage = conversation.exchanges[2].usage
    assert usage is not None
    assert conversation.tokens == usage.prompt_tokens + usage.completion_tokens
    assert conversation.saved is not None
    assert [turn.prompt for turn in conversation.saved.turns] == ["one", "two"]


def test_a_question_after_a_change_by_another_client(server: Server) -> None:
    """It fails; then the turns are read again, with the error in sight, and it can be asked once more."""
    conversation = Conversation(server)
    ask(conversation, "one")
    other = Conversation(server, conversation.saved)
    other.rewind(0)
    ask(conversation, "two")
    was_read = conversation.is_read
    conversation.restore()
    assert (was_read, type(conversation.error), prompts(conversation)) == (False, TurnGap, [])
    ask(conversation, "two")
    assert (conversation.error, prompts(conversation)) == (None, ["two"])


def test_a_failed_question_leaves_an_error(server: Server, fake: FakeSessions) -> None:
    """A session that could not be opened is opened by the next question; an ended one is marked."""
    conversation = Conversation(server)
    fake.fail("open", Fault(error=TooManySessions("full")))
    ask(conversation, "one")
    assert (type(conversation.error), conversation.saved) == (TooManySessions, None)
    ask(conversation, "one")
    assert (conversation.error, conversation.state) == (None, "open")
    fake.fail("prompt", Fault(error=SessionExpired("idle")))
    ask(conversation, "two")
    assert conversation.state == "expired"
    assert prompts(conversation) == ["one"]


def test_a_fork_is_a_session_of_its_own(server: Server) -> None:
    """It has the turns up to the fork, and a rewind of the source leaves it as it is."""
    source = Conversation(server)
    ask(source, "one")
    ask(source, "two")
    fork = source.fork(1)
    ask(fork, "three")
    assert source.rewind(1) == "two"
    assert prompts(source) == ["one"]
    assert prompts(fork) == ["one", "three"]
    assert fork.saved is not None
    assert source.saved is not None
    assert fork.saved.fork_of == source.saved.id != fork.saved.id


def test_a_session_is_read_again(server: Server, fake: FakeSessions) -> None:
    """The server has the replies, the browser the prompts; turns from elsewhere have none."""
    first = Conversation(server)
    ask(first, "one")
    assert first.saved is not None
    elsewhere = server.attach(first.saved.id)
    elsewhere.ask("two")
    again = Conversation(server, first.saved)
    again.restore()
    assert [(one.prompt, one.reply) for one in again.exchanges.values()] == [
        ("one", reply_to("one")),
        ("", reply_to("two")),
    ]
    ask(again, "three")
    assert prompts(again) == ["one", "", "three"]


def test_two_tabs_keep_the_questions_of_both(server: Server) -> None:
    """Each takes what the other has saved later, and questions stay with their turns."""
    first = Conversation(server)
    ask(first, "one")
    assert first.saved is not None
    second = Conversation(server, first.saved)
    second.restore()
    ask(first, "two")
    second.take(first.saved)
    ask(second, "three")
    assert second.saved is not None
    asked = [turn.prompt for turn in second.saved.turns]
    assert asked == ["one", "two", "three"]
    second.take(first.saved)  # which is older
    assert [turn.prompt for turn in second.saved.turns] == asked
    first.take(second.saved)
    assert first.saved == second.saved
    assert second.rewind(1) == "two"
    first.take(second.saved)
    assert prompts(first) == ["one"]


def test_a_turn_in_progress_goes_on(server: Server, fake: FakeSessions) -> None:
    """A session that is read in mid-reply shows the reply from its beginning to its end."""
    session = server.open()
    fake.sessions[session.session_id].append(Turn(1, "one", reply_to("one"), num_chars=6))
    again = Conversation(server, SavedSession(id=session.session_id, at=0.0))
    again.restore()
    assert again.live is not None
    assert again.live.wait(_LONG_S)
    again.finish()
    assert again.exchanges[1].reply == reply_to("one")


def test_a_cancelled_reply_keeps_its_text(server: Server, fake: FakeSessions) -> None:
    """The turn ends as `cancelled`, with the text until then."""
    session = server.open()
    fake.sessions[session.session_id].append(Turn(1, "one", "x" * 1_000_000, num_chars=6))
    again = Conversation(server, SavedSession(id=session.session_id, at=0.0))
    again.restore()
    again.cancel()
    assert again.live is not None
    assert again.live.wait(_LONG_S)
    again.finish()
    assert again.exchanges[1].finish_reason == "cancelled"
    assert set(again.exchanges[1].reply) == {"x"}
