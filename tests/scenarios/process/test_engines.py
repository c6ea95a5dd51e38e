"""Real engine processes: found, watched, killed, restarted, detached."""

from __future__ import annotations

import json
import signal
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.support.pictures import noise, png, png_base64
from tests.support.worker import Worker, eventually
from ts_stateful.process.worker.fork_server import has_ended
from ts_stateful.process.worker.supervisor import EngineDied
from ts_stateful.protocol.events import EventKind
from ts_stateful.protocol.requests import Continue, Fork, Image, Info, Open, Prompt

Start = Callable[..., Worker]


@pytest.fixture
def worker(start: Start) -> Worker:
    """A worker with a running engine."""
    return start()


def test_a_conversation_through_the_socket(worker: Worker, runtime: Path) -> None:
    """Images go in, and streamed text comes out. Only this user can access the socket and its folder."""
    picture = noise(1)
    opened = worker.ask(
        Open(session_id="s", images=(Image(base64=png_base64(picture)),)),
        attachments=(png(noise(2)),),
        creates_session=True,
    )
    assert opened["usage"]["prompt_tokens"] > 32
    request = worker.submit(
        Prompt(session_id="s", prompt="What is it?", stream=True, max_new_tokens=8)
    )
    answer = worker.wait(request)
    parts = [json.loads(e.body)["text"] for e in worker.events[request] if e.kind is EventKind.PART]
    replayed = worker.ask(Prompt(session_id="s", prompt="What is it?", turn=1))
    assert "".join(parts) + answer["text"] == replayed["text"]
    (socket_path,) = runtime.glob("*/*/engine-0.sock")
    assert socket_path.stat().st_mode & 0o777 == 0o600
    assert socket_path.parent.stat().st_mode & 0o777 == 0o700


def texts(worker: Worker, request: str) -> str:
    """Return the whole text of a streamed request."""
    last = worker.wait(request)
    parts = [json.loads(e.body)["text"] for e in worker.events[request] if e.kind is EventKind.PART]
    return "".join(parts) + str(last.get("text", last))


def test_a_killed_engine_is_back_with_its_sessions(worker: Worker) -> None:
    """Turns resume with the text of an undisturbed run: greedy, sampled, unstreamed or pulled."""
    worker.ask(
        Open(session_id="s", images=(Image(base64=png_base64(noise(1))),)), creates_session=True
    )
    ways: list[dict[str, Any]] = [
        {"stream": True},
        {"stream": True, "temperature": 1.0, "seed": 7},
        {},
    ]
    common: dict[str, Any] = {"prompt": "Go", "max_new_tokens": 300, "ignore_eos": True}
    whole = []
    for number, way in enumerate(ways):
        name = f"calm-{number}"
        worker.ask(Fork(session_id="s", new_session_id=name), creates_session=True)
        whole.append(texts(worker, worker.submit(Prompt(session_id=name, **common, **way))))
        worker.ask(Fork(session_id="s", new_session_id=f"rough-{number}"), creates_session=True)
    worker.ask(Fork(session_id="s", new_session_id="pulled"), creates_session=True)
    requests = [
        worker.submit(Prompt(session_id=f"rough-{number}", **common, **way))
        for number, way in enumerate(ways)
    ]
    pulled = worker.ask(Prompt(session_id="pulled", **common), pull=True)
    text = pulled["text"]
    for _ in range(2):
        worker.wait(requests[0], EventKind.PART)
        text += worker.ask(Continue(session_id="pulled", turn=1, after=len(text)))["text"]
        first = worker.kill(signal.SIGKILL)
        eventually(lambda first=first: worker.engine_pid() not in (0, first))  # type: ignore[misc]
    more = True
    while more:
        answer = worker.ask(Continue(session_id="pulled", turn=1, after=len(text)))
        text, more = text + answer["text"], answer["more"]
    assert [texts(worker, request) for request in requests] == whole
    assert text == whole[0]
    assert worker.ask(Info(session_id="rough-0"))["turns"] == 1


def test_a_session_is_opened_once(worker: Worker) -> None:
    """Also if the engine dies in between."""
    requests = [
        worker.submit(Open(session_id=f"s{index}"), creates_session=True) for index in range(4)
    ]
    worker.kill(signal.SIGKILL)
    for index, request in enumerate(requests):
        assert worker.wait(request)["session_id"] == f"s{index}"
        assert worker.ask(Info(session_id=f"s{index}"))["turns"] == 0


def test_a_hung_engine_is_killed_and_replaced(start: Start) -> None:
    """No sign of life within `heartbeatSec` counts as death."""
    worker = start(heartbeatSec=2.5)
    pid = worker.kill(signal.SIGSTOP)
    assert worker.ask(Open(session_id="s"), creates_session=True)["session_id"] == "s"
    assert worker.engine_pid() != pid


def test_a_new_worker_attaches_to_the_engine(worker: Worker, start: Start) -> None:
    """Sessions and turns in progress survive the worker; `continue` resumes a broken stream."""
    worker.ask(Open(session_id="s"), creates_session=True)
    running = worker.submit(
        Prompt(session_id="s", prompt="Go", stream=True, max_new_tokens=300, ignore_eos=True)
    )
    worker.wait(running, EventKind.PART)
    pid = worker.engine_pid()
    worker.dispatcher.close()
    successor = start()
    assert successor.engine_pid() == pid
    text, more, answer = "", True, {}
    while more:
        answer = successor.ask(Continue(session_id="s", turn=1, after=len(text)))
        text, more = text + answer["text"], answer["more"]
    assert answer["usage"]["completion_tokens"] == 300
    assert successor.ask(Info(session_id="s"))["turns"] == 1


def test_an_engine_ends_when_torchserve_does(
    worker: Worker, frontend: subprocess.Popen[bytes], runtime: Path
) -> None:
    """Only the store remains: no process, no socket, no folder."""
    pid = worker.engine_pid()
    frontend.kill()
    frontend.wait()
    worker.dispatcher.close()
    eventually(lambda: has_ended(pid))
    assert [path.name for path in runtime.glob("*/*")] == ["store"]


def test_an_engine_without_a_worker_waits_and_ends(start: Start) -> None:
    """It ends `engineLingerSec` after its worker has disconnected, however long it took to load."""
    worker = start(engineLingerSec=1)
    pid = worker.engine_pid()
    worker.dispatcher.close()
    eventually(lambda: has_ended(pid))


def test_a_model_that_cannot_be_loaded_is_named(
    start: Start, tmp_path: Path, runtime: Path
) -> None:
    """The error is a line with the reason, without a trace, and so is the end of the engine's log."""
    with pytest.raises(EngineDied, match="no-such-model") as died:
        start(model_dir=tmp_path, model="no-such-model")
    assert len(str(died.value).splitlines()) == 1
    (log,) = runtime.rglob("engine-0.log")
    assert "Traceback" not in log.read_text()
    assert log.read_text().splitlines()[-1].endswith(str(died.value))
