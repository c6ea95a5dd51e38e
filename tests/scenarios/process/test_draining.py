"""Engine processes that drain, or whose TorchServe exits: their requests are finished and stored."""

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
from ts_stateful.protocol.events import EventKind
from ts_stateful.protocol.requests import Hello, Info, Open, Prompt

Start = Callable[..., Worker]
TURN: dict[str, Any] = {"prompt": "Go", "max_new_tokens": 300, "ignore_eos": True}


@pytest.fixture
def store(tmp_path: Path) -> dict[str, Any]:
    """A store that outlives every process."""
    return {"url": (tmp_path / "store").as_uri()}


@pytest.fixture
def worker(start: Start) -> Worker:
    """A worker with a running engine."""
    return start()


def begin(worker: Worker, session_id: str = "s") -> str:
    """Open a session and begin a turn in it; return the request."""
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
    """It ends as without the exit, and another engine on the same store has it."""
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


def test_a_draining_engine_has_a_successor(worker: Worker) -> None:
    """Running turns end there; new requests wait for the successor, in order. None gets an error."""
    request = begin(worker)
    pid = worker.kill(signal.SIGTERM)
    later = [worker.submit(Prompt(session_id="s", **TURN)) for _ in range(2)]
    opened = worker.submit(Open(session_id="t"), creates_session=True)
    assert worker.wait(request)["turn"] == 1
    assert [worker.wait(one)["turn"] for one in later] == [2, 3]
    assert worker.wait(opened)["session_id"] == "t"
    eventually(lambda: worker.engine_pid() not in (0, pid))


def test_a_new_worker_of_a_draining_engine_uses_the_successor(worker: Worker, start: Start) -> None:
    """The engine announces that it drains on every connection."""
    begin(worker)
    pid = worker.engine_pid()
    worker.dispatcher.close()
    os.kill(pid, signal.SIGTERM)
    successor = start()
    assert successor.ask(Prompt(session_id="s", **TURN))["turn"] == 2
    eventually(lambda: has_ended(pid))


def test_a_turn_that_does_not_end_in_time_goes_on_at_the_successor(start: Start) -> None:
    """It goes on after `drainSec`, from the last token that the worker received."""
    worker = start(drainSec=0)
    request = begin(worker)
    worker.kill(signal.SIGTERM)
    assert worker.wait(request)["usage"]["completion_tokens"] == 300
    assert worker.ask(Info(session_id="s"))["turns"] == 1


def test_no_new_request_is_accepted_before_torchserve_stops(worker: Worker) -> None:
    """It is refused as `engine_unavailable`, retryable, also a balancer's `hello`. Running turns end as usual."""
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
