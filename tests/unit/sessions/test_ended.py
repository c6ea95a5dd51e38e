"""The memory of sessions that ended."""

from __future__ import annotations

from tests.support.clock import FakeClock
from ts_stateful.protocol.errors import SessionClosed, SessionExpired, SessionNotFound
from ts_stateful.sessions.ended import EndedSessions


def test_an_end_is_known_for_an_hour() -> None:
    """Then the id answers as if it had never been used."""
    clock = FakeClock()
    ended = EndedSessions(clock)
    ended.add("a", SessionClosed)
    ended.add("b", SessionExpired)
    clock.now += 3599
    assert isinstance(ended.error("a"), SessionClosed)
    assert isinstance(ended.error("b"), SessionExpired)
    clock.now += 1
    assert isinstance(ended.error("a"), SessionNotFound)


def test_an_id_in_use_again_is_forgotten() -> None:
    """Its next end counts."""
    ended = EndedSessions(FakeClock())
    ended.add("a", SessionClosed)
    assert "a" in ended
    ended.forget("a")
    assert "a" not in ended
    assert ended.error("a").field == "session_id"
