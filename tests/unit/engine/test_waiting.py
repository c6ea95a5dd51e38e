"""Requests that wait for a session: their order, and what they learn from a search."""

from __future__ import annotations

from ts_stateful.engine.waiting import Missing, PendingRequest, WaitingRequests
from ts_stateful.protocol.errors import SessionClosed, StoreFailed
from ts_stateful.protocol.events import Submit
from ts_stateful.protocol.requests import Info


def _request(request_id: str, *, is_retry: bool = False) -> PendingRequest:
    return PendingRequest(Submit(request_id, Info(session_id="s"), is_retry=is_retry))


def _ready(waiting: WaitingRequests) -> list[PendingRequest]:
    taken = []
    while waiting.has_ready:
        taken.append(waiting.next_ready())
    return taken


def test_released_requests_keep_their_order() -> None:
    """A session's queue is a queue."""
    waiting = WaitingRequests()
    for name in "abc":
        waiting.add("s", _request(name))
    assert "s" in waiting
    assert not waiting.has_ready
    waiting.release("s")
    assert [request.message.request_id for request in _ready(waiting)] == ["a", "b", "c"]
    assert "s" not in waiting


def test_requests_learn_what_became_of_their_session() -> None:
    """So that they are not searched for again."""
    waiting, missing = WaitingRequests(), Missing(SessionClosed("the session was closed"))
    waiting.add("s", _request("a"))
    waiting.release("s", missing=missing)
    [request] = _ready(waiting)
    assert request.missing == {"s": missing}
    assert request.error is None


def test_a_failed_search_refuses_all_that_wait() -> None:
    """They carry its error."""
    waiting, error = WaitingRequests(), StoreFailed("no answer")
    waiting.add("s", _request("a"))
    waiting.add("s", _request("b"))
    waiting.release("s", error=error)
    assert [request.error for request in _ready(waiting)] == [error, error]


def test_a_blocked_session_has_a_queue_without_requests() -> None:
    """Requests that come later join it."""
    waiting = WaitingRequests()
    waiting.block("s")
    assert "s" in waiting
    waiting.add("s", _request("a"))
    waiting.block("s")
    waiting.release("s")
    assert len(_ready(waiting)) == 1


def test_a_dropped_request_leaves_the_queue_in_place() -> None:
    """The search goes on, and its result is for those that come later."""
    waiting = WaitingRequests()
    waiting.add("s", _request("a"))
    waiting.drop("a")
    assert "s" in waiting
    waiting.release("s")
    assert not _ready(waiting)


def test_a_retry_in_the_queue_is_seen() -> None:
    """A session that an engine died with was not idle since."""
    waiting = WaitingRequests()
    waiting.add("s", _request("a"))
    assert not waiting.has_retry("s")
    waiting.add("s", _request("b", is_retry=True))
    assert waiting.has_retry("s")


def test_a_resumed_message_starts_again() -> None:
    """It has not been searched for."""
    waiting = WaitingRequests()
    message = _request("a").message
    waiting.resume(message)
    [request] = _ready(waiting)
    assert request.message is message
    assert not request.missing
