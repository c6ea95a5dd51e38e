"""Calls on a closed connection, and calls to a model that is registered again."""

from __future__ import annotations

import os
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor

import pytest

from tests.support.fake_client import PROFILES, TORCHSERVE, FakeTime, connected
from tests.support.fake_sessions import FakeSessions, Fault, reply_to
from tests.support.worker import eventually
from ts_stateful.client import ConnectionClosed, ServerRefused, connect
from ts_stateful.client.calls import Connection
from ts_stateful.client.transports.transport import Events, Transport
from ts_stateful.protocol.requests import Command, Hello, Prompt


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


class _Sender(Transport):
    """A transport that answers each call with its process."""

    max_body_bytes = 1000

    def call(
        self, command: Command, timeout_s: float, raw: Mapping[str, bytes] | None = None
    ) -> bytes:
        """See `Transport`."""
        return str(os.getpid()).encode()

    def pipeline(self, session_id: str, timeout_s: float) -> None:
        """See `Transport`."""

    def stream(self, command: Prompt, timeout_s: float, stall_s: float) -> Events:
        """See `Transport`."""
        raise NotImplementedError

    def close(self) -> None:
        """See `Transport`."""


@pytest.mark.filterwarnings(
    "ignore:This process:DeprecationWarning"
)  # of Python 3.12, where other tests left threads
@pytest.mark.parametrize("is_used", [False, True])
def test_a_connection_is_used_by_one_process(is_used: bool) -> None:
    """After a fork its sockets are shared, and answers would go to either process; before its first call there are none."""
    connection = Connection(_Sender())
    if is_used:
        connection.call(Hello(), 1.0)
    if not (child := os.fork()):
        try:
            answer = connection.call(Hello(), 1.0)
            os._exit(0 if answer == str(os.getpid()).encode() else 1)
        except ConnectionClosed as error:
            os._exit(2 if "forked" in error.message else 1)
        finally:
            os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == (2 if is_used else 0)


def test_a_cancel_does_not_wait_for_streams() -> None:
    """A connection over HTTP has as many streams as its caller begins, and calls beside them."""
    fake = FakeSessions(profile="http")
    fake.fail("prompt", *[Fault(events=1, stalls=True)] * 101)
    with connected(fake, FakeTime()) as server:
        streams = [iter(server.open().prompt("Hello")) for _ in range(101)]
        assert all(next(stream) for stream in streams)
        assert server.open().cancel(timeout_s=30)


def test_a_malformed_proxy_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """By the variables of the environment, as a malformed URL is."""
    monkeypatch.setenv("https_proxy", ":::")
    with pytest.raises(ValueError, match="http_proxy, https_proxy, all_proxy or no_proxy"):
        connect("https://server.example").hello()
