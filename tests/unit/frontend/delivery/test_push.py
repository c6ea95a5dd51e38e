"""The sequence profile: a batch lasts until all of its rows are answered."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest

from tests.support.clock import FakeClock
from tests.support.fake_dispatcher import (
    EXPIRES,
    ID,
    START,
    UNTIL,
    ScriptedDispatcher,
    accepted,
    last,
    part,
    refused,
)
from tests.support.fake_torchserve import HTTP, Job, SequenceFrontend, grpc_job
from ts_stateful.frontend.delivery.push import SequenceDelivery
from ts_stateful.frontend.inbox import Inbox
from ts_stateful.protocol.events import Event, Submit
from ts_stateful.protocol.profile import Profile

_PROMPT = {"prompt": "hi", "session_id": "s"}
_STREAM = {**_PROMPT, "stream": True}
_HEARTBEAT_S, _HOLD_S = 20.0, 1.0


class TimedInbox(Inbox):
    """An inbox whose events come at given times: waiting moves the clock to the next one."""

    def __init__(self, timetable: Sequence[tuple[float, Event]], clock: FakeClock) -> None:
        super().__init__()
        self._clock = clock
        self._timetable = sorted(timetable, key=lambda entry: entry[0])

    def wait(self, timeout_s: float) -> bool:
        assert timeout_s > 0, "a spinning loop"
        until = self._clock.now + timeout_s
        if self._timetable and self._timetable[0][0] <= until:
            until = self._timetable[0][0]
        self._clock.now = until
        while self._timetable and self._timetable[0][0] <= until:
            self.post(self._timetable.pop(0)[1])
        return False


class Server:
    """Frontend, delivery and a timetable of events."""

    def __init__(
        self,
        *timetable: tuple[float, Event],
        script: Callable[[Submit], Sequence[Event]] = lambda _: (),
    ) -> None:
        self.clock = FakeClock(0.0)
        self.inbox = TimedInbox(timetable, self.clock)
        self.dispatcher = ScriptedDispatcher(self.inbox, script)
        self.delivery = SequenceDelivery(
            self.dispatcher.intake(Profile.SEQUENCE, minting=True),
            self.inbox,
            self.clock,
            heartbeat_s=_HEARTBEAT_S,
            hold_s=_HOLD_S,
        )
        self.frontend = SequenceFrontend(self.delivery.handle)

    def batch(self, *jobs: Job) -> list[list[str]]:
        """The ids in each message of one batch."""
        self.frontend.batch(*jobs)
        assert len(self.inbox) == 0
        return self.frontend.messages


def test_one_answer_ends_the_batch() -> None:
    """One message, one whole response."""
    server = Server((0.5, last("r", {"a": 1}, session_id="s")))
    job = Job("r", {"type": "info", "session_id": "s"})
    assert server.batch(job) == [["r"]]
    assert job.whole
    assert job.body == b'{"a": 1}'


def test_a_refused_row_is_answered_at_once() -> None:
    """With its own status."""
    job = Job("r", {"prompt": 1})
    assert Server().batch(job) == [["r"]]
    assert (job.status, job.whole) == (400, True)


def test_events_over_grpc_are_pushed_one_by_one() -> None:
    """Also those that have piled up; the acceptance is no message."""
    server = Server(
        (1, accepted("r")), (2, part("r", "a")), (2, part("r", "b")), (3, last("r", {"text": ""}))
    )
    job = grpc_job("r", _STREAM, headers={ID: "s", "ts_request_sequence_end": "true"})
    assert server.batch(job) == [["r"], ["r"], ["r"]]
    assert job.messages == [{"text": "a"}, {"text": "b"}, {"text": ""}]
    assert [response.more for response in job.responses] == ["true", "true", "false"]


def test_a_stream_over_http_begins_with_the_acceptance() -> None:
    """So that the client has the status and the session id before the first text."""
    server = Server(
        (1, accepted("r", session_id="s", opened_until=UNTIL)),
        (2, part("r", "a")),
        (3, last("r", {"text": ""})),
    )
    job = Job("r", {"prompt": "hi", "stream": True})
    server.batch(job)
    assert [response.body for response in job.responses] == [
        b"",
        b'data: {"text": "a"}\n\n',
        b'data: {"text": ""}\n\n',
    ]
    assert job.response_headers == {
        "content-type": "text/event-stream",
        ID: f"s; {EXPIRES}",
        "X-Accel-Buffering": "no",
    }


def test_a_row_ends_before_the_others() -> None:
    """In a message that carries another one on; each goes at its own pace."""
    server = Server(
        *((number, part("long", str(number))) for number in range(6)),
        (1.0, part("short", "x")),
        (2.0, last("short", {"text": "end"})),
        (9.0, last("long", {"text": "end"})),
    )
    short, long = grpc_job("short", _STREAM), grpc_job("long", _STREAM)
    server.batch(short, long)
    assert short.messages == [{"text": "x"}, {"text": "end"}]
    assert [message["text"] for message in long.messages] == [*"012345", "end"]


@pytest.mark.parametrize(
    ("carrier", "seen"),
    [
        (grpc_job("open", _STREAM), [{"text": ""}, {"text": "end"}]),
        (grpc_job("open", {"type": "open"}, headers={ID: "s"}), [None, {"text": "end"}]),
    ],
)
def test_a_row_without_news_carries_on_over_grpc(carrier: Job, seen: list[Any]) -> None:
    """By a message without news, in a stream an event: a message ends the batch unless some row has more."""
    server = Server((1, last("short")), (5, last("open", {"text": "end"})))
    short = grpc_job("short", {"type": "info", "session_id": "s"})
    assert server.batch(short, carrier)[0] == ["short", "open"]
    assert carrier.messages == seen


def test_a_row_that_has_begun_over_http_carries_on_unseen() -> None:
    """An empty chunk sends no bytes; it is preferred to a gRPC row, whose client would get a message."""
    server = Server(
        (1, accepted("http")),
        (2, last("short")),
        (5, last("http", {"text": ""})),
        (6, last("call")),
    )
    http, call = Job("http", _STREAM), grpc_job("call", _STREAM)
    short = Job("short", {"type": "info", "session_id": "s"})
    assert server.batch(short, call, http)[:2] == [["http"], ["short", "http"]]
    assert server.frontend.messages[2:] == [["http", "call"], ["call"]]
    assert http.body == b'data: {"text": ""}\n\n'


def test_an_accepted_row_carries_on_over_http() -> None:
    """Its status is as good as known; the answer follows later."""
    server = Server((1, accepted("http", session_id="s")), (2, last("short")), (5, last("http")))
    http, short = Job("http", _PROMPT), Job("short", {"type": "info", "session_id": "s"})
    assert server.batch(short, http) == [["short", "http"], ["http"]]
    assert http.response_headers[ID] == "s"


def test_a_row_whose_status_is_open_is_spared_for_a_moment() -> None:
    """The end of another row waits for it; here both end together, each with its status."""
    server = Server((1.0, last("short")), (1.5, refused("http", 413)))
    server.clock.now = 0.9
    short, http = Job("short", {"type": "info", "session_id": "s"}), Job("http", _PROMPT)
    assert server.batch(short, http) == [["short", "http"]]
    assert (http.status, http.whole, short.whole) == (413, True, True)


def test_no_row_waits_longer_for_a_status() -> None:
    """Then the open row goes on as a 200, and its body has a late error."""
    server = Server((0.5, last("short")), (7, refused("http", 413)))
    short, http = Job("short", {"type": "info", "session_id": "s"}), Job("http", _PROMPT)
    assert server.batch(short, http) == [["short", "http"], ["http"]]
    assert short.whole
    assert (http.status, http.body) == (200, b'{"error": {"code": "x", "status": 413}}')


@pytest.mark.parametrize(
    ("job", "beats"),
    [
        (grpc_job("r", _STREAM), [{"text": ""}, {"text": ""}, {"a": 1}]),
        (grpc_job("r", _PROMPT), [None, None, {"a": 1}]),
        (Job("r", _PROMPT), [None, None, {"a": 1}]),
    ],
)
def test_silence_is_broken_before_the_worker_is_killed_for_it(job: Job, beats: list[Any]) -> None:
    """TorchServe counts the seconds from message to message."""
    server = Server((_HEARTBEAT_S * 2.5, last("r", {"a": 1})))
    assert server.batch(job) == [["r"]] * 3
    assert job.messages == beats


def test_one_beat_is_enough_for_all() -> None:
    """And it comes from the row that it costs least."""
    server = Server(
        (1, accepted("http")),
        (_HEARTBEAT_S * 1.5, last("http")),
        (_HEARTBEAT_S * 1.6, last("call")),
    )
    http, call = Job("http", _STREAM), grpc_job("call", _PROMPT)
    messages = server.batch(call, http)
    assert messages[:2] == [["http"], ["http"]]


def test_ids_that_the_frontend_makes_open_sessions() -> None:
    """The client learns them from the answer."""
    minted = "ts-seq-0b9fd3a0-7e4e-4d5c-8b0e-0f0f0f0f0f0f"
    server = Server(
        script=lambda s: [last(s.request_id, session_id=s.command.session_id, opened_until=UNTIL)]
    )
    job = Job("r", {"prompt": "hi"}, headers={**HTTP, ID: minted, START: "true"})
    server.batch(job)
    assert server.dispatcher.submitted["r"].creates_session
    assert job.response_headers[ID] == f"{minted}; {EXPIRES}"


def test_what_breaks_in_one_row_is_that_rows_answer() -> None:
    """The others go on."""

    def script(submitted: Submit) -> Sequence[Event]:
        if submitted.request_id == "a":
            raise RuntimeError("defect")
        return [last(submitted.request_id)]

    jobs = [Job("a", _PROMPT), grpc_job("b", _PROMPT)]
    Server(script=script).batch(*jobs)
    assert [job.status for job in jobs] == [500, 200]


class _Closed(Exception):
    pass


def test_a_batch_without_a_reader_is_dropped() -> None:
    """The frontend has closed the socket: the engines need not go on, and nothing remains."""
    server = Server((1, part("r", "a")))

    class Socket:
        def sendall(self, _: bytes) -> None:
            raise _Closed

    class Context:
        cl_socket = Socket()
        stopping_criteria: Any = None
        request_ids = {0: "r"}

        def get_all_request_header(self, idx: int) -> dict[str, str]:
            return {}

        def set_response_status(self, *_: Any) -> None:
            pass

        def get_response_headers(self, idx: int) -> dict[str, str]:
            return {}

        def set_response_header(self, *_: Any) -> None:
            pass

        def get_response_content_type(self, idx: int) -> None:
            pass

        def get_response_status(self, idx: int) -> tuple[int, str]:
            return 200, ""

    data = [{"data": b'{"prompt": "hi", "stream": true, "session_id": "s"}'}]
    with pytest.raises(_Closed):
        server.delivery.handle(data, Context())
    assert server.dispatcher.dropped == ["r"]
    assert len(server.inbox) == 0


def test_batches_follow_each_other() -> None:
    """Nothing of one reaches the next."""
    server = Server(script=lambda s: [last(s.request_id)])
    for number in range(3):
        server.batch(Job(f"a{number}", _PROMPT), grpc_job(f"b{number}", _PROMPT))
    assert server.frontend.messages == [[f"a{n}", f"b{n}"] for n in range(3)]
