"""Replies whose turn the server has lost."""

from __future__ import annotations

import pytest

from tests.support.fake_client import PROFILES, FakeTime, connected
from tests.support.fake_sessions import FakeSessions, Fault, reply_to
from ts_stateful.client import DeadlineExceeded, ProtocolError
from ts_stateful.protocol.errors import InvalidRequest, TurnGap


@pytest.mark.parametrize("num_pulled", [0, 2])
def test_a_pulled_turn_that_is_lost_is_begun_again(num_pulled: int) -> None:
    """With some text of it, and without any."""
    fake, time = FakeSessions(profile="continuous"), FakeTime()
    with connected(fake, time) as server, server.open() as session:
        reply = session.prompt("Hello")
        pieces = iter(reply)
        text = "".join(next(pieces) for _ in range(num_pulled))
        fake.sessions[session.session_id].clear()
        fake.fail("continue", Fault(error=TurnGap("gone")))
        assert text + "".join(pieces) == reply_to("Hello")
    assert [request["turn"] for request in fake.of_kind("prompt")] == [1, 1]


@pytest.mark.parametrize("profile", [name for name in PROFILES if name != "continuous"])
def test_a_repetition_that_breaks_off_is_resumed(profile: str) -> None:
    """If the repetition breaks within the known text, no later text is skipped."""
    fake, time = FakeSessions(profile=profile), FakeTime()
    fake.fail("prompt", Fault(events=4), Fault())
    fake.fail("continue", Fault(error=TurnGap("gone")))
    with connected(fake, time) as server, server.open() as session:
        assert "".join(session.prompt("Hello")) == reply_to("Hello")
    assert [request["after"] for request in fake.of_kind("continue")[:2]] == [12, 12]


@pytest.mark.parametrize("profile", PROFILES)
def test_a_turn_that_is_given_up_is_not_begun_again(profile: str) -> None:
    """After a Ctrl-C before its prompt has arrived, the server has no such turn and is not asked for it again."""
    fake, time = FakeSessions(profile=profile), FakeTime()
    with connected(fake, time) as server, server.open() as session:
        fake.fail("prompt", Fault())
        time.raises = KeyboardInterrupt()
        with pytest.raises(KeyboardInterrupt):
            session.prompt("Hello").result()
        assert fake.sessions[session.session_id] == []
        assert session.ask("Next") == reply_to("Next")
    assert [request["prompt"] for request in fake.of_kind("prompt")] == ["Hello", "Next"]


def test_a_second_interrupt_leaves_the_session_usable(monkeypatch: pytest.MonkeyPatch) -> None:
    """A second Ctrl-C gives the turn up without waiting: the next turn has its number."""
    fake, time = FakeSessions(profile="http"), FakeTime()
    with connected(fake, time) as server, server.open() as session:
        fake.fail("prompt", Fault())
        time.raises = KeyboardInterrupt()
        reply = session.prompt("Hello")

        def interrupt(_timeout_s: float) -> None:
            raise KeyboardInterrupt

        monkeypatch.setattr(reply, "cancel", interrupt)
        with pytest.raises(KeyboardInterrupt):
            reply.result()
        assert list(reply) == []
        assert session.ask("Next") == reply_to("Next")


def test_a_repetition_with_another_text_is_an_error() -> None:
    """The text of two different replies is never joined."""
    fake, time = FakeSessions(profile="http"), FakeTime()
    fake.fail("prompt", Fault(events=4))
    with connected(fake, time) as server, server.open() as session:
        pieces = iter(session.prompt("Hello"))
        for _ in range(4):
            next(pieces)
        fake.sessions[session.session_id].clear()
        fake.fail("continue", Fault(error=TurnGap("gone")))
        fake.texts.append("You did not say that.")
        with pytest.raises(ProtocolError, match="another text"):
            next(pieces)


@pytest.mark.parametrize("profile", PROFILES)
def test_a_sampled_turn_has_a_seed(profile: str) -> None:
    """A prompt that is sent again is the same turn: it has the seed of the first one."""
    fake, time = FakeSessions(profile=profile), FakeTime()
    with connected(fake, time) as server, server.open() as session:
        fake.fail("prompt", Fault())
        session.ask("Hello", temperature=0.5)
        session.ask("Hello", temperature=0.5)
        session.ask("Hello", temperature=0.5, seed=0)
        session.ask("Hello")
    first, again, second, given, greedy = fake.of_kind("prompt")
    assert first["seed"] == again["seed"] != second["seed"]
    assert (given["seed"], greedy.get("seed")) == (0, None)


@pytest.mark.parametrize("profile", [name for name in PROFILES if name != "sequence"])
def test_a_turn_that_missed_its_deadline_is_dropped(profile: str) -> None:
    """The next prompt does not wait for it, and the session has nothing of it."""
    fake, time = FakeSessions(profile=profile), FakeTime()
    with connected(fake, time) as server, server.open() as session:
        session.ask("One")
        fake.fail("prompt", Fault(events=1, stalls=True))  # or it may end first
        reply = session.prompt("Two", timeout_s=5)
        pieces = iter(reply)
        next(pieces)
        time.now += 6
        with pytest.raises(DeadlineExceeded):
            next(pieces)
        assert session.ask("Three") == reply_to("Three")
        assert [turn.prompt for turn in fake.sessions[session.session_id]] == ["One", "Three"]


@pytest.mark.parametrize("profile", PROFILES)
def test_a_number_that_counted_a_dropped_turn_is_renewed(profile: str) -> None:
    """A turn of an earlier process may be rolled back after it was counted."""
    fake, time = FakeSessions(profile=profile), FakeTime()
    with connected(fake, time) as server:
        session = server.attach(server.open().session_id)
        fake.fail("prompt", Fault(error=TurnGap("turn 1 is next")))
        reply = session.prompt("Hello")
        assert (reply.result(), reply.turn) == (reply_to("Hello"), 1)
        fake.fail("prompt", Fault(error=TurnGap("no")))
        with pytest.raises(TurnGap):
            session.ask("Next")


class _SoftLimitError(Exception):
    pass


@pytest.mark.parametrize("stream", [False, True])
def test_any_exception_leaves_the_numbers_right(stream: bool) -> None:
    """What cannot be encoded, and what a signal handler raises, takes no number."""
    fake, time = FakeSessions(profile="http"), FakeTime()
    with connected(fake, time) as server, server.open() as session:
        with pytest.raises(InvalidRequest, match="surrogates") as caught:
            session.prompt("\ud800", stream=stream).result()
        assert caught.value.field == "prompt"
        time.raises = _SoftLimitError()
        fake.fail("prompt", Fault())
        with pytest.raises(_SoftLimitError):
            session.prompt("Hello", stream=stream).result()
        assert session.ask("Next") == reply_to("Next")
    assert [request["turn"] for request in fake.of_kind("prompt")] == [1, 1]


def test_only_the_latest_turn_is_cancelled() -> None:
    """A reply that is over, or has a later one after it, does not cancel that one's turn."""
    fake, time = FakeSessions(profile="http"), FakeTime()
    with connected(fake, time) as server, server.open() as session:
        over, left = session.prompt("One"), session.prompt("Two")
        over.result()
        kept = iter(left)
        next(kept)
        fake.sessions[session.session_id][1].num_chars = 1000
        fake.sessions[session.session_id][1].finish_reason = "stop"
        latest = session.prompt("Three")
        pieces = iter(latest)
        next(pieces)
        over.cancel()
        left.cancel()
        assert "cancel" not in fake.kinds()
        latest.cancel()
        assert "".join(pieces) or latest.finish_reason
    assert fake.kinds().count("cancel") == 1
