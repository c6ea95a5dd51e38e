"""The async profile: a coroutine per request."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable, Coroutine, Sequence
from typing import Any

import pytest

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
from tests.support.fake_torchserve import (
    AsyncService,
    Job,
    Prediction,
    grpc_job,
    torchserve_service,
)
from ts_stateful.frontend.async_mailbox import AsyncMailbox
from ts_stateful.frontend.delivery.push_async import AsyncDelivery
from ts_stateful.protocol.events import Event, Submit
from ts_stateful.protocol.profile import Profile

_PROMPT = {"prompt": "hi", "session_id": "s"}
_STREAM = {**_PROMPT, "stream": True}
_PUSHED = {
    "data": b'{"prompt": "hi", "session_id": "s", "stream": true}',
    "rpc": b"StreamPredictions",
}


class Server:
    """TorchServe's own asynchronous service in front of the delivery."""

    def __init__(self, script: Callable[[Submit], Sequence[Event]] = lambda _: ()) -> None:
        self.jobs: dict[str, Job] = {}
        self.freed: list[str] = []
        self.mailbox = AsyncMailbox()
        self.dispatcher = ScriptedDispatcher(self.mailbox, script)
        delivery = AsyncDelivery(self.dispatcher.intake(Profile.ASYNC), self.mailbox)
        self._service = AsyncService(torchserve_service(delivery.handle, self._take))
        self._service.out_queue = asyncio.Queue()

    def _take(self, predictions: list[Prediction]) -> None:
        for prediction in predictions:
            job = self.jobs[prediction.request_id]
            if job.whole:
                # The HTTP encoder discards what comes after a whole response; the aggregator frees the job.
                assert (prediction.more, prediction.body) == ("false", b"")
            else:
                job.respond(prediction)
            if prediction.more == "false":
                self.freed.append(prediction.request_id)

    def start(self, job: Job) -> asyncio.Task[None]:
        """A request comes in."""
        self.jobs[job.request_id] = job
        return asyncio.ensure_future(self._service.call_predict([job.request()]))

    async def serve(self, *jobs: Job) -> None:
        """Requests come in and are answered."""
        tasks = [self.start(job) for job in jobs]
        await asyncio.wait(tasks)
        # What a coroutine returns goes out on another thread, and could be mixed with what we send.
        assert all(task.cancelled() for task in tasks)
        assert self._service.out_queue.empty()
        assert sorted(self.freed) == sorted(job.request_id for job in jobs)
        assert len(self.mailbox) == 0


def run(coroutine: Coroutine[Any, Any, None]) -> None:
    asyncio.run(coroutine)


def test_an_answer_over_http_is_whole_and_then_freed() -> None:
    """TorchServe keeps a request until it reads "false", and an HTTP client must not be sent that first."""
    server = Server(
        lambda s: [
            accepted(s.request_id),
            last(s.request_id, {"a": 1}, session_id="s", opened_until=UNTIL),
        ]
    )
    job = Job("r", _PROMPT)
    run(server.serve(job))
    assert (job.whole, job.body) == (True, b'{"a": 1}')
    assert job.response_headers[ID] == f"s; {EXPIRES}"


@pytest.mark.parametrize("document", [{"prompt": 1}, _PROMPT, _STREAM])
def test_an_error_over_http_has_its_status(document: Any) -> None:
    """It is whole too: TorchServe closes the connection after the head of an error."""
    server = Server(lambda s: [refused(s.request_id, 429)])
    job = Job("r", document)
    run(server.serve(job))
    assert job.whole
    assert job.status in (400, 429)


def test_a_stream_over_http_is_pushed() -> None:
    """Head, events, end."""
    server = Server(
        lambda s: [
            accepted(s.request_id),
            part(s.request_id, "a"),
            last(s.request_id, {"text": ""}),
        ]
    )
    job = Job("r", _STREAM)
    run(server.serve(job))
    assert job.body == b'data: {"text": "a"}\n\ndata: {"text": ""}\n\n'
    assert job.response_headers["content-type"] == "text/event-stream"


def test_a_unary_call_gets_one_message() -> None:
    """Streamed or not: a second one would take the worker down."""
    server = Server(lambda s: [accepted(s.request_id), last(s.request_id, {"text": "hello"})])
    jobs = [grpc_job("a", _STREAM, unary=True), grpc_job("b", _PROMPT, unary=True)]
    run(server.serve(*jobs))
    assert [job.messages for job in jobs] == [[{"text": "hello"}]] * 2
    assert not any(
        getattr(s.command, "stream", False) for s in server.dispatcher.submitted.values()
    )


def test_a_pushed_call_gets_event_by_event() -> None:
    """The last one is marked."""
    server = Server(
        lambda s: [
            accepted(s.request_id),
            part(s.request_id, "a"),
            part(s.request_id, "b"),
            last(s.request_id, {"text": ""}),
        ]
    )
    job = grpc_job("r", inputs=_PUSHED)
    run(server.serve(job))
    assert job.messages == [{"text": "a"}, {"text": "b"}, {"text": ""}]


def test_requests_run_side_by_side() -> None:
    """A long one does not hold up a short one; events come from another thread."""
    server = Server()
    long, short = grpc_job("long", inputs=_PUSHED), grpc_job("short", inputs=_PUSHED)

    async def play() -> None:
        serving = asyncio.ensure_future(server.serve(long, short))
        while len(server.dispatcher.submitted) < 2:
            await asyncio.sleep(0)
        thread = threading.Thread(target=server.mailbox.post, args=(last("short", {"text": "b"}),))
        server.mailbox.post(part("long", "a"))
        thread.start()
        while not server.freed:
            await asyncio.sleep(0)
        thread.join()
        assert server.freed == ["short"]
        server.mailbox.post(last("long", {"text": "c"}))
        await serving

    run(play())
    assert long.messages == [{"text": "a"}, {"text": "c"}]


def test_what_breaks_in_one_row_is_that_rows_answer() -> None:
    """Anything that left the coroutine would fail every request in flight."""

    def script(submitted: Submit) -> Sequence[Event]:
        if submitted.request_id == "a":
            raise RuntimeError("defect")
        retry_after: Any = "soon"
        return [refused(submitted.request_id, 429, retry_after_s=retry_after)]

    jobs = [Job("a", _PROMPT), Job("b", _PROMPT)]
    run(Server(script).serve(*jobs))
    assert [job.status for job in jobs] == [500, 500]


def test_a_coroutine_that_is_ended_drops_its_request() -> None:
    """The worker stops."""
    server = Server()

    async def play() -> None:
        task = server.start(Job("r", _PROMPT))
        while not server.dispatcher.submitted:
            await asyncio.sleep(0)
        task.cancel()
        await asyncio.wait([task])

    run(play())
    assert server.dispatcher.dropped == ["r"]
    assert len(server.mailbox) == 0


def test_no_metric_and_no_answer_is_left_to_torchserve(caplog: pytest.LogCaptureFixture) -> None:
    """Ending as cancelled leaves no trace in its log either."""
    caplog.set_level(logging.WARNING)
    run(Server(lambda s: [last(s.request_id)]).serve(Job("r", _PROMPT)))
    assert caplog.records == []
