"""Calls on a closed connection, and calls to a model that is registered again."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest

from tests.support.fake_client import PROFILES, TORCHSERVE, FakeTime, connected
from tests.support.fake_sessions import FakeSessions, Fault, reply_to
from tests.support.worker import eventually
from ts_stateful.client import ConnectionClosed, ServerRefused


@pytest.mark.parametrize("profile", PROFILES)
def test_a_closed_connection_says_so(profile: str) -> None:
    """Every call raises the same error, whatever its library would raise, and none is retried."""
    fake, time = FakeSessions(profile=profile), FakeTime()
    with connected(fake, time) as server:
        session = server.open()
        reply = session.prompt("Hello", stream=True)
        pieces = iter(reply)
        first = next(pieces)
        server.close()
        for act in (server.open, session.info, lambda: session.ask("Hello"), session.close):
            with pytest.raises(ConnectionClosed, match="is closed"):
                act()
        reply.close()
        assert reply.text == first
    assert not time.slept


@pytest.mark.parametrize("profile", TORCHSERVE)
def test_a_call_in_progress_ends_with_the_connection(profile: str) -> None:
    """A thread that waits for an answer gets the same error when another one closes the connection."""
    fake = FakeSessions(profile=profile)
    with connected(fake, FakeTime(), stall_s=0.5) as server, ThreadPoolExecutor(1) as pool:
        session = server.open()
        fake.fail("prompt", *[Fault(stalls=True)] * 100)
        waiting = pool.submit(session.ask, "Hello")
        eventually(lambda: "prompt" in fake.kinds())
        server.close()
        with pytest.raises(ConnectionClosed):
            waiting.result()


@pytest.mark.parametrize("profile", TORCHSERVE)
@pytest.mark.parametrize("stream", [False, True])
def test_a_model_that_is_registered_again_is_waited_for(profile: str, stream: bool) -> None:
    """A model that has answered is waited for, also in the middle of a reply."""
    fake = FakeSessions(profile=profile)
    with connected(fake, FakeTime()) as server, server.open() as session:
        fake.unregistered = 3
        assert session.prompt("Hello", stream=stream).result() == reply_to("Hello")
        pieces = iter(session.prompt("Next", stream=stream))
        first = next(pieces)
        fake.unregistered = 3
        assert first + "".join(pieces) == reply_to("Next")
        fake.unregistered = 0


@pytest.mark.parametrize("profile", TORCHSERVE)
def test_a_model_that_does_not_come_back_is_an_error(profile: str) -> None:
    """It has as many attempts as other failures."""
    fake, time = FakeSessions(profile=profile), FakeTime()
    with connected(fake, time) as server:
        session = server.open()
        fake.unregistered = 1000
        with pytest.raises(ServerRefused, match="Model not found"):
            session.ask("Hello")
    assert len(time.slept) == 6
