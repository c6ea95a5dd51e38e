"""The watch of the server's state."""

from __future__ import annotations

from tests.support.fake_sessions import FakeSessions, Fault
from ts_stateful.cli.web.server_watch import ServerWatch
from ts_stateful.client import RetryPolicy, connect
from ts_stateful.protocol.errors import EngineUnavailable, Unauthenticated


def test_a_server_that_is_down_is_a_state(url: str, fake: FakeSessions) -> None:
    """The watch has the reason while the server does not answer, and keeps the last answer."""
    fake.fail("hello", Fault(error=EngineUnavailable("it starts")))
    with connect(url, policy=RetryPolicy(max_retries=0)) as server:
        watch = ServerWatch(server)
        watch.look()
        assert (watch.is_up, watch.problem) == (False, "engine_unavailable: it starts")
        watch.start()
        assert (watch.is_up, watch.problem) == (True, None)
        watch.stop()
    watch.look()
    assert str(watch.problem).startswith("the connection is closed")
    assert watch.hello is not None


def test_a_refused_caller_is_no_server_that_is_down(url: str, fake: FakeSessions) -> None:
    """The page would say that replies go on when the server is back."""
    fake.fail("hello", Fault(error=Unauthenticated("it has expired")))
    with connect(url, policy=RetryPolicy(max_retries=0)) as server:
        watch = ServerWatch(server)
        watch.look()
        assert (watch.is_up, watch.problem) == (True, None)
        assert watch.refusal == "unauthenticated: it has expired"
        watch.look()
        assert watch.refusal is None
