"""Engine processes that are told to end, or whose TorchServe ends: what they have begun is finished and kept."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from tests.support.worker import Worker, eventually
from ts_stateful.process.worker.fork_server import ForkServer, has_ended
from ts_stateful.process.worker.in_flight import InFlight, Outstanding
from ts_stateful.protocol.events import EventKind, Submit
from ts_stateful.protocol.requests import Continue, Hello, Info, Open, Prompt

Start = Callable[..., Worker]
TURN: dict[str, Any] = {"prompt": "Go", "max_new_tokens": 300, "ignore_eos": True}


@pytest.fixture
def store(tmp_path: Path) -> dict[str, Any]:
    """Where sessions outlive everything."""
    return {"url": (tmp_path / "store").as_uri()}


@pytest.fixture
def worker(start: Start) -> Worker:
    """A worker with a running engine."""
    return start()


def mark_sent(request: InFlight) -> str:
    """What a link does with a request that goes to its engine."""
    request.sent = True
    return request.message.request_id


def begin(worker: Worker, session_id: str = "s") -> str:
    """Opens a session and begins a turn in it; the request."""
    worker.ask(Open(session_id=session_id), creates_session=True)
    request = worker.submit(Prompt(session_id=session_id, stream=True, **TURN))
    worker.wait(request, EventKind.PART)
    return request


def test_a_turn_outlives_its_torchserve(
    start: Start,
    frontend: subprocess.Popen[bytes],
    model_dir: Path,
    store: dict[str, Any],
    fork_server: ForkServer,
) -> None:
    """It ends as it would have, and whoever asks for it finds it: on the same store, with another engine."""
    worker = start(store=store)
    begin(worker)
    pid = worker.engine_pid()
    worker.dispatcher.close()
    frontend.kill()
    frontend.wait()
    eventually(lambda: has_ended(pid))
    other = Worker(model_dir, os.getpid(), fork_server=fork_server, store=store, engineLingerSec=1)
    with closing(other.dispatcher):
        other.dispatcher.start()
        answer = other.ask(Prompt(session_id="s", turn=1, **TURN))
    assert (answer["replayed"], answer["usage"]["completion_tokens"]) == (True, 300)


def test_an_engine_that_is_told_to_end_has_a_successor(worker: Worker) -> None:
    """What runs ends there; what comes in the meantime waits for the next one, in order. Nobody gets an error."""
    request = begin(worker)
    pid = worker.kill(signal.SIGTERM)
    later = [worker.submit(Prompt(session_id="s", **TURN)) for _ in range(2)]
    opened = worker.submit(Open(session_id="t"), creates_session=True)
    assert worker.wait(request)["turn"] == 1
    assert [worker.wait(one)["turn"] for one in later] == [2, 3]
    assert worker.wait(opened)["session_id"] == "t"
    eventually(lambda: worker.engine_pid() not in (0, pid))


def test_what_an_engine_that_leaves_does_not_have_waits_for_the_next_one() -> None:
    """But for what is about a turn that it finishes; where there is no next one, it is late."""
    sent: list[str] = []
    outstanding = Outstanding(lambda request: sent.append(mark_sent(request)))

    def add(name: str, command: Prompt | Continue | Info) -> None:
        outstanding.add(InFlight(Submit(name, command), None))

    add("running", Prompt(session_id="s", prompt="Go"))
    outstanding.leave(for_good=False)
    assert outstanding.engine_drains
    add("second", Prompt(session_id="s", prompt="Go"))
    add("continue", Continue(session_id="s", turn=1))
    add("third", Prompt(session_id="s", prompt="Go"))
    add("info", Info(session_id="s"))
    assert sent == ["running", "continue", "info"]
    assert outstanding.late == []
    outstanding.engine_died()
    outstanding.send_waiting()
    assert sent[3:] == ["running", "second", "continue", "third", "info"]
    outstanding.leave(for_good=True)
    add("late", Prompt(session_id="s", prompt="Go"))
    assert [request.message.request_id for request in outstanding.late] == ["late"]
    outstanding.engine_died()
    assert len(outstanding.late) == 6


def test_a_new_worker_is_told_as_well(worker: Worker, start: Start) -> None:
    """One that comes while the engine is leaving gets its next engine."""
    begin(worker)
    pid = worker.engine_pid()
    worker.dispatcher.close()
    os.kill(pid, signal.SIGTERM)
    successor = start()
    assert successor.ask(Prompt(session_id="s", **TURN))["turn"] == 2
    eventually(lambda: has_ended(pid))


def test_what_does_not_end_in_time_goes_on_at_the_successor(start: Start) -> None:
    """After `drainSec`, behind the last token that was told."""
    worker = start(drainSec=0)
    request = begin(worker)
    worker.kill(signal.SIGTERM)
    assert worker.wait(request)["usage"]["completion_tokens"] == 300
    assert worker.ask(Info(session_id="s"))["turns"] == 1


def test_before_torchserve_stops_nothing_new_is_taken(worker: Worker) -> None:
    """It is refused as `engine_unavailable`, retryable, also for a balancer's `hello`; what runs ends as it would have."""
    pid = worker.engine_pid()
    request = begin(worker)
    for number in (signal.SIGTERM, signal.SIGUSR1, signal.SIGTERM):
        os.kill(pid, number)
    assert worker.wait(request)["finish_reason"] == "length"
    eventually(lambda: has_ended(pid))
    for command in (Prompt(session_id="s", **TURN), Open(session_id="t"), Hello()):
        error = worker.ask(command, creates_session=isinstance(command, Open))["error"]
        assert (error["code"], error["status"]) == ("engine_unavailable", 503)
        assert error["retryable"]
        assert error["retry_after_s"] > 0
    eventually(lambda: worker.engine_pid() == 0)
