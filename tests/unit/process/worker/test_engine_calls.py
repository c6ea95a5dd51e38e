"""Calls to an engine: each ends once, with its own answer, or with the engine."""

from __future__ import annotations

from typing import Any

import pytest

from ts_stateful.process.messages import AdminAnswer, AdminRequest, Ping
from ts_stateful.process.worker.engine_calls import EngineCalls
from ts_stateful.protocol.errors import EngineUnavailable
from ts_stateful.protocol.operations import EvictSession, ListSessions, Outcome


class Sender:
    """Keeps what was sent, while it is `up`."""

    def __init__(self, *, up: bool = True) -> None:
        self.up = up
        self.sent: list[Any] = []

    def send(self, message: Any) -> bool:
        """See `MessageSender`."""
        if self.up:
            self.sent.append(message)
        return self.up


def test_answers_find_their_operations_in_any_order() -> None:
    """By their ids; an unknown id is ignored."""
    sender = Sender()
    calls = EngineCalls(sender)
    first, second = calls.ask(ListSessions()), calls.ask(EvictSession("a"))
    ids = [message.request_id for message in sender.sent]
    assert sender.sent == [
        AdminRequest(ids[0], ListSessions()),
        AdminRequest(ids[1], EvictSession("a")),
    ]
    calls.answered(AdminAnswer(ids[1], Outcome(error="busy")))
    calls.answered(AdminAnswer("unknown", Outcome()))
    assert second.result(0) == Outcome(error="busy")
    assert not first.done()
    calls.answered(AdminAnswer(ids[0], Outcome(parked=("x",))))
    assert first.result(0).parked == ("x",)


def test_a_caller_that_gives_up_does_not_disturb_the_reader() -> None:
    """Its answer comes all the same."""
    sender = Sender()
    calls = EngineCalls(sender)
    asked = calls.ask(ListSessions())
    asked.cancel()
    calls.answered(AdminAnswer(sender.sent[0].request_id, Outcome()))
    assert asked.result(0) == Outcome()


def test_pings_are_answered_in_order() -> None:
    """An answer that nothing waits for is ignored."""
    sender, done = Sender(), list[str]()
    calls = EngineCalls(sender)
    calls.ping(lambda: done.append("first"))
    calls.ping(lambda: done.append("second"))
    assert sender.sent == [Ping(), Ping()]
    calls.pinged()
    assert done == ["first"]
    calls.pinged()
    calls.pinged()
    assert done == ["first", "second"]


@pytest.mark.parametrize("up", [True, False])
def test_all_calls_end_with_the_engine(*, up: bool) -> None:
    """Also those that come when there is none."""
    sender, done = Sender(up=up), list[str]()
    calls = EngineCalls(sender)
    calls.ping(lambda: done.append("ping"))
    asked = calls.ask(ListSessions())
    assert (bool(done), asked.done()) == (not up, not up)
    calls.lost()
    calls.lost()
    assert done == ["ping"]
    assert isinstance(asked.exception(0), EngineUnavailable)
