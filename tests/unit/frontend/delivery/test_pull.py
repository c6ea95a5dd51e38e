"""The continuous profile: every request in flight is in every batch."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from tests.support.clock import FakeClock
from tests.support.fake_dispatcher import (
    EXPIRES,
    ID,
    UNTIL,
    ScriptedDispatcher,
    accepted,
    last,
    part,
    refused,
)
from tests.support.fake_torchserve import HTTP, ContinuousFrontend, Job, grpc_job
from ts_stateful.clock import SYSTEM_CLOCK, Clock
from ts_stateful.frontend.delivery.pull import ContinuousDelivery, Pace
from ts_stateful.frontend.inbox import Inbox
from ts_stateful.frontend.pending_response import PendingResponse
from ts_stateful.protocol.events import Event, Submit
from ts_stateful.protocol.profile import Profile

_PROMPT = {"prompt": "hi", "session_id": "s"}
_STREAM = {**_PROMPT, "stream": True}


class Server:
    """Frontend, delivery and a scripted dispatcher; no call waits."""

    def __init__(
        self,
        script: Callable[[Submit], Sequence[Event]] = lambda _: (),
        *,
        settle_s: float = 0,
        probe_s: float = 0,
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        self.inbox = Inbox()
        self.dispatcher = ScriptedDispatcher(self.inbox, script)
        self.delivery = ContinuousDelivery(
            self.dispatcher.intake(Profile.CONTINUOUS),
            self.inbox,
            Pace(wait_s=0, patient_wait_s=0, settle_s=settle_s, probe_s=probe_s),
            clock,
        )
        self.frontend = ContinuousFrontend(self.delivery.handle)

    def post(self, *events: Event) -> None:
        for event in events:
            self.inbox.post(event)

    def check_empty(self) -> None:
        assert (len(self.delivery), len(self.inbox), self.frontend.jobs) == (0, 0, {})


@pytest.mark.parametrize("make", [Job, grpc_job])
def test_a_row_without_news_is_left_out_and_comes_again(make: Callable[..., Job]) -> None:
    """It is parsed once, blocks no other request, and can still get any status."""
    server = Server()
    job = make("r", {"type": "info", "session_id": "s"})
    assert server.frontend.round(job) == []
    assert server.frontend.round() == []
    server.post(refused("r", 404))
    assert server.frontend.round() == ["r"]
    assert job.status == 404
    server.check_empty()


def test_an_answer_that_is_there_at_once_is_one_whole_response() -> None:
    """In the batch that brought the request."""
    server = Server(lambda s: [last(s.request_id, {"a": 1}, session_id="s", opened_until=UNTIL)])
    job = Job("r", {"type": "open", "session_id": "s"})
    server.frontend.round(job)
    assert job.whole
    assert job.body == b'{"a": 1}'
    assert job.response_headers == {"content-type": "application/json", ID: f"s; {EXPIRES}"}
    assert job.responses[0].phrase == "OK"
    server.check_empty()


def test_a_prompt_over_http_is_held_open_so_that_a_disconnect_shows() -> None:
    """Headers with the acceptance, nothing in every batch, the answer at the end; nothing is read from the cached row."""
    server = Server(lambda s: [accepted(s.request_id, session_id="s")])
    job = Job("r", _PROMPT)
    assert server.frontend.round(job) == ["r"]
    assert job.cached
    assert server.frontend.round() == ["r"]
    server.post(last("r", {"text": "hello"}))
    server.frontend.round()
    assert (job.status, job.body) == (200, b'{"text": "hello"}')
    assert job.response_headers == {"content-type": "application/json", ID: "s"}
    server.check_empty()


def test_a_silent_request_gets_an_empty_response_now_and_then() -> None:
    """So that its client's disconnect shows. A row with text needs none, and costs nothing between its texts."""
    clock = FakeClock()
    server = Server(lambda s: [accepted(s.request_id)], probe_s=2, clock=clock)
    silent, stream = Job("a", _PROMPT), Job("b", _STREAM)
    answered = [server.frontend.round(silent, stream)]
    for _ in range(5):
        clock.sleep(1)
        server.post(part("b", "x"))
        answered.append(server.frontend.round())
    assert answered == [["a", "b"], ["b"], ["a", "b"], ["b"], ["a", "b"], ["b"]]


def test_what_fails_soon_has_its_own_status() -> None:
    """Also after its acceptance; but a body that is not light is not sent repeatedly for that."""
    server = Server(lambda s: [accepted(s.request_id, session_id="s")], settle_s=60)
    light, heavy = Job("a", _PROMPT), Job("b", {**_PROMPT, "prompt": "x" * 2000})
    assert server.frontend.round(light, heavy) == ["b"]
    server.post(refused("a", 409), refused("b", 409))
    server.frontend.round()
    assert (light.status, heavy.status) == (409, 200)
    assert light.whole
    server.check_empty()


def test_a_stream_is_passed_on_as_it_comes() -> None:
    """Parts that have piled up leave together."""
    server = Server(lambda s: [accepted(s.request_id)])
    job = Job("r", _STREAM)
    server.frontend.round(job)
    server.post(part("r", "a"), part("r", "b"))
    server.frontend.round()
    server.post(part("r", "c"), last("r", {"text": "", "finish_reason": "stop"}))
    server.frontend.round()
    events = [json.loads(line.removeprefix(b"data: ")) for line in job.body.split(b"\n\n")[:-1]]
    assert "".join(event["text"] for event in events) == "abc"
    assert events[-1]["finish_reason"] == "stop"
    assert job.response_headers["content-type"] == "text/event-stream"
    assert len(job.responses) == 3


@pytest.mark.parametrize("document", [_PROMPT, _STREAM])
def test_a_prompt_over_grpc_is_pulled(document: Any) -> None:
    """One message, and the call is over."""
    server = Server(lambda s: [last(s.request_id, {"text": "", "next": 0, "more": s.pull})])
    job = grpc_job("r", document, unary=True)
    server.frontend.round(job)
    assert job.messages == [{"text": "", "next": 0, "more": True}]
    server.check_empty()


def test_rows_do_not_wait_for_each_other() -> None:
    """One joins, one streams, one ends, one is refused, one has no news: each in its own time."""
    server = Server()
    stream, call = Job("stream", _STREAM), grpc_job("call", {"type": "info", "session_id": "s"})
    server.frontend.round(stream, call)
    server.post(accepted("stream"), part("stream", "a"))
    wrong, quiet = Job("wrong", {"prompt": 1}), Job("quiet", {"type": "info", "session_id": "s"})
    assert server.frontend.round(wrong, quiet) == ["stream", "wrong"]
    server.post(last("call", {"a": 1}))
    assert sorted(server.frontend.round()) == ["call", "stream"]
    assert wrong.status == 400
    assert call.messages == [{"a": 1}]
    server.post(last("stream"), last("quiet"))
    server.frontend.round()
    server.check_empty()


def test_a_disconnected_client_is_dropped_once() -> None:
    """Its row is missing from the next batch; that is the only sign."""
    server = Server(lambda s: [accepted(s.request_id)])
    server.frontend.round(Job("left", _PROMPT), Job("stays", _PROMPT))
    del server.frontend.jobs["left"]
    server.frontend.round()
    server.frontend.round()
    assert server.dispatcher.dropped == ["left"]
    assert (len(server.delivery), len(server.inbox)) == (1, 1)
    server.post(last("left"), last("stays"))
    server.frontend.round()
    server.check_empty()


def test_what_breaks_in_one_row_is_that_rows_answer() -> None:
    """A defect of the worker, in taking a request or in answering it."""

    def script(submitted: Submit) -> Sequence[Event]:
        if submitted.request_id == "a":
            raise RuntimeError("defect")
        retry_after: Any = "soon" if submitted.request_id == "b" else 1
        return [refused(submitted.request_id, 429, retry_after_s=retry_after)]

    server = Server(script)
    jobs = [Job(request_id, _PROMPT) for request_id in "abc"]
    server.frontend.round(*jobs)
    server.frontend.round()
    assert [job.status for job in jobs] == [500, 500, 429]
    server.check_empty()


def test_a_row_of_a_dead_worker_is_ended() -> None:
    """Its headers and body went to the worker before this one."""
    server = Server()
    job = Job("r", _PROMPT, cached=True, responses=[])
    job.is_http = False  # its kind is lost; "false" ends either
    server.frontend.round(job)
    assert job.ended
    server.check_empty()


def test_a_request_id_in_flight_is_never_taken_twice() -> None:
    """Many rows, many batches: each is submitted once (the dispatcher here refuses a second time) and answered once."""
    server = Server()
    jobs = [
        (Job if number % 2 else grpc_job)(f"r{number}", _STREAM if number % 3 else _PROMPT)
        for number in range(40)
    ]
    for number, job in enumerate(jobs):
        server.frontend.round(job)
        if number >= 10:
            server.post(last(jobs[number - 10].request_id))
    for job in jobs[-10:]:
        server.post(accepted(job.request_id), last(job.request_id))
    server.frontend.round()
    assert all(job.ended and job.responses for job in jobs)
    server.check_empty()


class _Waits(Inbox):
    """Records how long a call waits, by a clock of its own; an event or a ring ends a wait at once."""

    def __init__(self, clock: FakeClock) -> None:
        super().__init__()
        self._clock = clock
        self.waits_s: list[float] = []

    def wait(self, timeout_s: float) -> bool:
        rung = super().wait(0)
        self.waits_s.append(timeout_s)
        if not rung and not any(self._events.values()):
            self._clock.now += timeout_s
        return rung


def waiting() -> tuple[_Waits, ContinuousFrontend]:
    """A frontend whose calls wait one second, and five when they are patient."""
    clock = FakeClock(0.0)
    inbox = _Waits(clock)
    intake = ScriptedDispatcher(inbox).intake(Profile.CONTINUOUS)
    pace = Pace(wait_s=1, patient_wait_s=5, settle_s=100)
    return inbox, ContinuousFrontend(ContinuousDelivery(intake, inbox, pace, clock).handle)


def test_big_bodies_that_are_sent_again_are_asked_for_less_often() -> None:
    """Until the first response to their row."""
    inbox, frontend = waiting()
    frontend.round(Job("big", {**_PROMPT, "images": [{"base64": "A" * 100_000}]}))
    inbox.post(accepted("big"))
    frontend.round()
    frontend.round()
    assert inbox.waits_s == [5, 5, 1]


def test_bodies_that_slow_all_calls_are_sent_no_more() -> None:
    """Together they are big: their requests get a first response while they wait. Others do not."""
    server = Server(settle_s=4)  # more than the looks at the clock in the first call
    big = {"prompt": "x", "images": [{"base64": "A" * 9_000_000}]}
    first, second = (Job(name, {**big, "session_id": name}) for name in "ab")
    light = Job("c", _PROMPT)
    assert server.frontend.round(first, second, light) == []
    assert server.frontend.round() == ["a", "b"]
    assert (first.status, first.body, first.cached) == (200, b"", True)
    server.post(last("a", {"a": 1}), refused("b", 500), refused("c", 429))
    assert server.frontend.round() == ["a", "b", "c"]
    assert (first.status, first.body) == (200, b'{"a": 1}')
    assert (second.status, json.loads(second.body)["error"]["status"]) == (200, 500)
    assert light.status == 429
    server.check_empty()


def test_one_big_body_keeps_its_status() -> None:
    """However old it is, if it is alone."""
    server = Server()
    job = Job("r", {"prompt": "x", "images": [{"base64": "A" * 9_000_000}]})
    assert server.frontend.round(job) == server.frontend.round() == []
    server.post(refused("r", 413))
    server.frontend.round()
    assert job.status == 413


def test_calls_wait_longer_while_nothing_happens() -> None:
    """A new request makes them short again, because more may join; a response ends a call in any case."""
    inbox, frontend = waiting()
    frontend.round(Job("a", _STREAM))
    for _ in range(4):
        frontend.round()
    for _ in range(2):
        inbox.post(part("a", "x"))
        frontend.round()
    frontend.round()
    frontend.round(Job("b", _PROMPT))
    assert inbox.waits_s == [1, 2, 4, 5, 5, 5, 5, 5, 1]


_RESPONSE = {"model": "model", "stream": True, "input": "hi"}


@pytest.mark.parametrize(("document", "path"), [(_STREAM, ""), (_RESPONSE, "v1/responses")])
def test_an_acceptance_alone_ends_no_call(document: dict[str, Any], path: str) -> None:
    """Not even where it is an event: until the first text, or until the status settles, a call costs a running pass time."""
    inbox, frontend = waiting()
    job = Job("a", document, headers={**HTTP, "url_path": path})
    inbox.expect("a")
    inbox.post(accepted("a", session_id="s"))
    assert frontend.round(job) == []
    assert (inbox.waits_s, job.responses) == ([1, 1], [])
    inbox.post(part("a", "x", session_id="s"))
    assert frontend.round() == ["a"]
    assert (job.status, job.response_headers[ID]) == (200, "s")
    assert b"x" in job.body


def test_a_ring_ends_a_call() -> None:
    """A request that waits joins at once, and what came until then is not lost."""
    inbox, frontend = waiting()
    job = Job("a", _STREAM)
    inbox.ring()
    assert frontend.round(job) == []
    assert inbox.waits_s == [1]
    inbox.ring()
    inbox.post(part("a", "x"))
    assert frontend.round(Job("b", _PROMPT)) == ["a"]
    frontend.round()
    assert inbox.waits_s == [1, 1, 2]


def test_headers_of_the_client_do_not_come_back() -> None:
    """Only what the server made or checked stands in a response header."""
    server = Server(lambda s: [last(s.request_id, {}, session_id=s.command.session_id)])
    evil = {**HTTP, "X-Evil": "a\r\nSet-Cookie: b", ID: "a\r\nb"}
    jobs = [Job("r", {"prompt": "hi"}, headers=evil), Job("q", {"prompt": "hi"})]
    server.frontend.round(*jobs)
    assert jobs[0].status == 400
    assert set(jobs[0].response_headers) == {"content-type"}
    assert set(jobs[1].response_headers) == {"content-type", ID}


def test_rows_keep_no_more_than_is_in_flight() -> None:
    """Ten times the same, nothing left."""
    server = Server(lambda s: [last(s.request_id)])
    for number in range(100):
        server.frontend.round(Job(f"r{number}", _PROMPT))
    server.check_empty()
    assert not any(isinstance(value, PendingResponse) for value in vars(server.delivery).values())


def test_a_description_that_comes_again_and_again_is_paced(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """TorchServe never takes it off its queue: a defect that a worker can only report."""
    clock, inbox = FakeClock(0.0), Inbox()
    intake = ScriptedDispatcher(inbox).intake(Profile.CONTINUOUS)
    delivery = ContinuousDelivery(intake, inbox, Pace(wait_s=0), clock)
    frontend = ContinuousFrontend(delivery.handle)
    for paused_s in (0.0, 1.0, 2.0):
        job = grpc_job("d", inputs={}, headers={"describe": "True", "Host": "x"})
        frontend.round(job)
        assert job.messages == [{"described": True}]
        assert clock.now == paused_s
    assert caplog.text.count("register the model again") == 1
