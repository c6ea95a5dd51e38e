"""Replies whose turn the server has lost."""

from __future__ import annotations

import pytest

from tests.support.fake_client import PROFILES, FakeTime, connected
from tests.support.fake_sessions import FakeSessions, Fault, reply_to
from ts_stateful.protocol.errors import TurnGap


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
        time.interrupts = True
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
        time.interrupts = True
        reply = session.prompt("Hello")

        def interrupt(_timeout_s: float) -> None:
            raise KeyboardInterrupt

        monkeypatch.setattr(reply, "cancel", interrupt)
        with pytest.raises(KeyboardInterrupt):
            reply.result()
        assert list(reply) == []
        assert session.ask("Next") == reply_to("Next")
