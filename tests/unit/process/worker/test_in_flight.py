"""Unanswered requests: their order, their retries, and the isolation of a suspect."""

from __future__ import annotations

from ts_stateful.process.worker.in_flight import InFlight, InFlightRequests
from ts_stateful.protocol.events import Event, EventKind, Submit
from ts_stateful.protocol.requests import Continue, Info, Prompt


class Engine:
    """An engine that takes every request, or a place without an engine."""

    def __init__(self, *, is_up: bool = True) -> None:
        self.sent: list[str] = []
        self._is_up = is_up

    def send(self, message: Submit) -> bool:
        """Record a request."""
        self.sent.append(message.request_id)
        return self._is_up


def request(name: str, command: Prompt | Continue | Info | None = None) -> InFlight:
    """Make a request that was not sent yet."""
    return InFlight(Submit(name, command or Prompt(session_id=name, prompt="Hello")))


def test_requests_are_sent_in_order_and_a_suspect_alone() -> None:
    """Also if the suspect is removed in the middle of its trial."""
    engine = Engine(is_up=False)
    in_flight = InFlightRequests(engine)
    requests = {name: request(name) for name in "abc"}
    for one in requests.values():
        in_flight.add(one)
    for _ in range(2):
        requests["b"].count_death(exclusive=False)
    engine.sent.clear()
    in_flight.send_waiting()
    in_flight.add(request("d"))
    assert engine.sent == ["b"]
    in_flight.remove("b")
    assert engine.sent == ["b", "a", "c", "d"]


def test_bytes_are_counted_by_principal_until_the_answer() -> None:
    """Whether an engine has the request or not; those without a principal count together."""
    in_flight = InFlightRequests(Engine(is_up=False))
    for name, principal, num_bytes in (
        ("a", "x", 1),
        ("b", "y", 10),
        ("c", "x", 100),
        ("d", None, 7),
    ):
        message = Submit(name, Prompt(prompt=""), principal=principal, num_bytes=num_bytes)
        in_flight.add(InFlight(message))
    assert [in_flight.bytes_of(name) for name in ("x", "y", None, "z")] == [101, 10, 7, 0]
    for name in "abcd":
        in_flight.remove(name)
    assert [in_flight.bytes_of(name) for name in ("x", "y", None)] == [0, 0, 0]


def test_progress_clears_a_request() -> None:
    """An engine that has produced tokens of a turn did not die of taking it."""
    one = request("a")
    for _ in range(5):
        one.count_death(exclusive=True)
        assert not one.is_rejected
        assert one.record(Event("a", EventKind.PART, b"{}", num_chars=3, token_ids=(1, 2)))
    assert not one.is_suspect
    assert one.to_send.skip == 15
    assert one.to_send.replay == (1, 2) * 5
    assert one.to_send.is_retry


def test_no_request_is_tried_forever() -> None:
    """Even if it makes progress in between."""
    one = request("a")
    while not one.is_rejected:
        one.count_death(exclusive=False)
        assert not one.record(Event("a", EventKind.PROGRESS, token_ids=(1,)))
        assert one.deaths < 100


def test_new_requests_wait_for_the_successor_of_a_draining_engine() -> None:
    """Only those about a turn that it finishes are sent. Without a successor, the waiting ones are stranded."""
    engine = Engine()
    in_flight = InFlightRequests(engine)
    turn = Prompt(session_id="s", prompt="Go")
    in_flight.add(request("running", turn))
    in_flight.drain(for_good=False)
    assert in_flight.draining
    in_flight.add(request("second", turn))
    in_flight.add(request("continue", Continue(session_id="s", turn=1)))
    in_flight.add(request("third", turn))
    in_flight.add(request("info", Info(session_id="s")))
    assert engine.sent == ["running", "continue", "info"]
    assert in_flight.stranded == []
    in_flight.engine_died()
    in_flight.send_waiting()
    assert engine.sent[3:] == ["running", "second", "continue", "third", "info"]
    in_flight.drain(for_good=True)
    in_flight.add(request("late", turn))
    assert [one.message.request_id for one in in_flight.stranded] == ["late"]
    in_flight.engine_died()
    assert len(in_flight.stranded) == 6
