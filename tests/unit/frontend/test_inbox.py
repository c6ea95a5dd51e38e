"""Events between the dispatcher's thread and TorchServe's."""

from __future__ import annotations

import threading

from tests.support.fake_dispatcher import last, part
from ts_stateful.frontend.inbox import Inbox

_LONG_S = 60.0


def test_events_are_taken_once_in_their_order() -> None:
    """By request."""
    inbox = Inbox()
    inbox.expect("a")
    inbox.expect("b")
    events = [part("a", "1"), part("b", "2"), last("a")]
    for event in events:
        inbox.post(event)
    assert inbox.take("a") == [events[0], events[2]]
    assert inbox.take("a") == []
    assert inbox.take("b") == [events[1]]


def test_events_of_no_request_are_dropped() -> None:
    """Before a request is expected and after it is forgotten; neither leaves anything."""
    inbox = Inbox()
    inbox.post(part("a", "1"))
    inbox.expect("a")
    inbox.post(part("a", "2"))
    inbox.forget("a")
    inbox.forget("a")
    inbox.post(last("a"))
    assert inbox.take("a") == []
    assert len(inbox) == 0


def test_to_expect_again_loses_nothing() -> None:
    """An event may be there already."""
    inbox = Inbox()
    inbox.expect("a")
    inbox.post(last("a"))
    inbox.expect("a")
    assert inbox.take("a") == [last("a")]


def test_an_event_of_another_thread_ends_the_wait() -> None:
    """There is no wait if there is one already, or for no time."""
    inbox = Inbox()
    inbox.expect("a")
    inbox.wait(0)
    inbox.wait(-1)
    poster = threading.Thread(target=inbox.post, args=(last("a"),))
    poster.start()
    inbox.wait(_LONG_S)
    poster.join()
    inbox.wait(_LONG_S)
    assert inbox.take("a") == [last("a")]


def test_a_ring_ends_one_wait() -> None:
    """Also if it comes before the wait, or twice."""
    inbox = Inbox()
    inbox.ring()
    inbox.ring()
    assert inbox.wait(_LONG_S)
    assert not inbox.wait(0)
    ringer = threading.Thread(target=inbox.ring)
    ringer.start()
    assert inbox.wait(_LONG_S)
    ringer.join()
