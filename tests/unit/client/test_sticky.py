"""Sessions by their ids, over any transport."""

from __future__ import annotations

import pytest

from tests.support.fake_client import FakeTime, connected
from tests.support.fake_sessions import FakeSessions, reply_to
from ts_stateful.client import Server, StickySessions
from ts_stateful.protocol.errors import SessionError, SessionNotFound


@pytest.fixture(params=["http", "sagemaker"])
def fake(request: pytest.FixtureRequest) -> FakeSessions:
    """A server without and with SageMaker between."""
    return FakeSessions(profile=request.param)


def test_a_session_is_started_invoked_and_ended(server: Server, fake: FakeSessions) -> None:
    """A session works by an id of the caller's choice and by a new id."""
    client = StickySessions(server)
    for session_id in ("conversation-1", None):
        name = client.start_session(session_id, system="Be brief.")
        assert session_id in (name, None)
        assert client.invoke("Hello", session_id=name) == reply_to("Hello")
        reply = client.invoke_stream("Again", {"max_new_tokens": 7}, session_id=name)
        assert "".join(reply) == reply_to("Again")
        client.end_session(name)
        assert name in fake.closed
    assert fake.of_kind("prompt")[1]["max_new_tokens"] == 7
    assert [request["turn"] for request in fake.of_kind("prompt")] == [1, 2, 1, 2]


def test_a_session_of_an_earlier_process_goes_on(server: Server) -> None:
    """The server is asked once about an id that was not started here."""
    name = StickySessions(server).start_session()
    client = StickySessions(server)
    assert client.invoke("Hello", session_id=name) == reply_to("Hello")
    client.end_session(name)
    with pytest.raises(SessionNotFound):
        client.end_session("missing")


def test_a_lost_session_keeps_its_name(fake: FakeSessions, time: FakeTime) -> None:
    """With `reopen` the caller goes on with its id."""
    with connected(fake, time) as server:
        client = StickySessions(server, reopen=True)
        name = client.start_session()
        del fake.sessions[name]
        assert client.invoke("Hello", session_id=name) == reply_to("Hello")
        client.end_session(name)
    (opened,) = fake.sessions
    assert fake.closed == {opened}


def test_a_session_that_has_ended_by_itself_is_forgotten(
    server: Server, fake: FakeSessions
) -> None:
    """Otherwise a program would keep it and its images for ever; its id may be open again later."""
    client = StickySessions(server)
    name = client.start_session("conversation-1")
    del fake.sessions[name]
    with pytest.raises(SessionError):
        client.end_session(name)
    server.open(session_id=name)
    assert client.invoke("Hello", session_id=name) == reply_to("Hello")
    assert "info" in fake.kinds()
