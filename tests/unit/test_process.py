"""Engine processes, for real: found, watched, killed, restarted, left behind."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.support.pictures import noise, png, png_base64
from tests.support.tiny import llava, save
from ts_stateful.config import load_config
from ts_stateful.errors import SessionExists
from ts_stateful.events import Describe, EngineCommand, Event, EventKind
from ts_stateful.process.dispatch import Dispatcher, devices
from ts_stateful.process.spec import runtime_folder
from ts_stateful.process.supervisor import EngineDied
from ts_stateful.protocol import Continue, Fork, Hello, Image, Info, Open, Prompt

WAIT_S = (
    90  # the longest that anything here may take on a slow machine; nothing waits for it to pass
)


class Worker:
    """What a TorchServe worker is to its engines."""

    def __init__(self, model_dir: Path, frontend_pid: int, **handler: Any) -> None:
        document = {
            "continuousBatching": True,
            "maxNumSequence": 8,
            "maxSequenceJobQueueSize": 4,
            "sequenceMaxIdleMSec": 600_000,
            "handler": {"model": "model", "threads": 1, **handler},
        }
        self.events: dict[str, list[Event]] = {}
        self._arrived = threading.Condition()
        self._count = 0
        self.dispatcher = Dispatcher(
            load_config(document),
            document,
            model_name="tiny",
            model_dir=model_dir,
            on_event=self._note,
            frontend_pid=frontend_pid,
        )

    def _note(self, event: Event) -> None:
        with self._arrived:
            self.events.setdefault(event.request_id, []).append(event)
            self._arrived.notify_all()

    def submit(self, command: EngineCommand, **fields: Any) -> str:
        self._count += 1
        request_id = f"{id(self)}-{self._count}"
        self.dispatcher.submit(request_id, command, **fields)
        return request_id

    def wait(self, request_id: str, kind: EventKind = EventKind.LAST) -> dict[str, Any]:
        """The first event of a kind, as a document."""

        def found() -> Event | None:
            events = self.events.get(request_id, [])
            return next((event for event in events if event.kind is kind), None)

        with self._arrived:
            assert self._arrived.wait_for(found, WAIT_S), "no answer"
            event = found()
        assert event is not None
        document: dict[str, Any] = json.loads(event.body or b"{}")
        return document

    def ask(self, command: EngineCommand, **fields: Any) -> dict[str, Any]:
        return self.wait(self.submit(command, **fields))

    def engine_pid(self) -> int:
        return int(self.ask(Describe())["engine_pid"])


def eventually(condition: Callable[[], bool]) -> None:
    """Returns as soon as something is so."""
    deadline = time.monotonic() + WAIT_S
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def gone(pid: int) -> bool:
    return not psutil.pid_exists(pid) or psutil.Process(pid).status() == psutil.STATUS_ZOMBIE


@pytest.fixture(scope="module")
def model_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An unpacked archive with a small model that sees."""
    folder = tmp_path_factory.mktemp("archive")
    save(llava(), folder / "model")
    return folder


@pytest.fixture
def frontend() -> Iterator[subprocess.Popen[bytes]]:
    """A process that stands for TorchServe: the engines end with it."""
    process = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    with process:
        yield process
        process.kill()


@pytest.fixture
def runtime(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A private place for the engines' files, with a path short enough for sockets."""
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        monkeypatch.setenv("TS_STATEFUL_RUNTIME_DIR", folder)
        yield Path(folder)


@pytest.fixture
def worker(model_dir: Path, frontend: subprocess.Popen[bytes], runtime: Path) -> Iterator[Worker]:
    """A worker with a running engine."""
    worker = Worker(model_dir, frontend.pid)
    worker.dispatcher.start()
    yield worker
    worker.dispatcher.close()


def test_a_conversation_through_the_socket(worker: Worker, runtime: Path) -> None:
    """Images in, streamed text out; the socket and its folder are this user's alone."""
    picture = noise(1)
    opened = worker.ask(
        Open(session_id="s", images=(Image(base64=png_base64(picture)),)),
        attachments=(png(noise(2)),),
        opens=True,
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


def test_a_killed_engine_is_back_and_its_sessions_are_not(worker: Worker) -> None:
    """What was in flight is answered at once when the new engine is there; new sessions work."""
    worker.ask(Open(session_id="lost"), opens=True)
    first = worker.engine_pid()
    running = worker.submit(
        Prompt(session_id="lost", prompt="Go", stream=True, max_new_tokens=900, ignore_eos=True)
    )
    worker.wait(running, EventKind.ACCEPTED)
    os.kill(first, signal.SIGKILL)
    opening = worker.submit(Open(session_id="new"), opens=True)
    assert worker.wait(running)["error"]["code"] == "session_not_found"
    assert worker.wait(opening)["session_id"] == "new"
    assert worker.engine_pid() != first


def test_a_request_that_kills_the_engine_twice_is_given_up(worker: Worker) -> None:
    """It gets `internal`; the engine comes back all the same."""
    opening = worker.submit(
        Prompt(session_id="s", prompt="Go", stream=True, max_new_tokens=900, ignore_eos=True),
        opens=True,
    )
    for count in (1, 2):
        eventually(
            lambda count=count: (  # type: ignore[misc]
                sum(e.kind is EventKind.ACCEPTED for e in worker.events.get(opening, [])) >= count
            )
        )
        os.kill(worker.engine_pid(), signal.SIGKILL)
    assert worker.wait(opening)["error"]["code"] == "internal"
    assert worker.ask(Hello())["server"] == "torchserve-stateful"


def test_a_hung_engine_is_killed_and_replaced(
    model_dir: Path, frontend: subprocess.Popen[bytes], runtime: Path
) -> None:
    """No sign of life within `heartbeatSec` counts as death."""
    worker = Worker(model_dir, frontend.pid, heartbeatSec=2.5)
    worker.dispatcher.start()
    pid = worker.engine_pid()
    os.kill(pid, signal.SIGSTOP)
    assert worker.ask(Open(session_id="s"), opens=True)["session_id"] == "s"
    assert worker.engine_pid() != pid
    worker.dispatcher.close()


def test_a_new_worker_takes_up_with_the_engine(
    worker: Worker, model_dir: Path, frontend: subprocess.Popen[bytes]
) -> None:
    """Sessions and turns in progress survive the worker; a broken stream is resumed by `continue`."""
    worker.ask(Open(session_id="s"), opens=True)
    running = worker.submit(
        Prompt(session_id="s", prompt="Go", stream=True, max_new_tokens=300, ignore_eos=True)
    )
    worker.wait(running, EventKind.PART)
    pid = worker.engine_pid()
    worker.dispatcher.close()
    successor = Worker(model_dir, frontend.pid)
    successor.dispatcher.start()
    assert successor.engine_pid() == pid
    text, more, answer = "", True, {}
    while more:
        answer = successor.ask(Continue(session_id="s", turn=1, after=len(text)))
        text, more = text + answer["text"], answer["more"]
    assert answer["usage"]["completion_tokens"] == 300
    assert successor.ask(Info(session_id="s"))["turns"] == 1
    successor.dispatcher.close()


def test_an_engine_ends_when_torchserve_does(
    worker: Worker, frontend: subprocess.Popen[bytes], runtime: Path
) -> None:
    """Nothing is left behind: no process, no socket, no folder."""
    pid = worker.engine_pid()
    frontend.kill()
    frontend.wait()
    worker.dispatcher.close()
    eventually(lambda: gone(pid))
    assert not list(runtime.glob("*/*"))


def test_an_engine_without_a_worker_waits_and_ends(
    model_dir: Path, frontend: subprocess.Popen[bytes], runtime: Path
) -> None:
    """`engineLingerSec` after its worker has gone."""
    worker = Worker(model_dir, frontend.pid, engineLingerSec=0.5)
    worker.dispatcher.start()
    pid = worker.engine_pid()
    worker.dispatcher.close()
    eventually(lambda: gone(pid))


def test_sessions_are_spread_over_the_engines(
    model_dir: Path, frontend: subprocess.Popen[bytes], runtime: Path
) -> None:
    """Two engines, each with its share; every session is found where it was opened, also by the next worker."""
    worker = Worker(model_dir, frontend.pid, engines=2)
    worker.dispatcher.start()
    names = [f"s{index}" for index in range(8)]
    for name in names:
        assert worker.ask(Open(session_id=name), opens=True)["session_id"] == name
    assert worker.ask(Open(session_id="more"), opens=True)["error"]["code"] == "too_many_sessions"
    worker.dispatcher.close()
    successor = Worker(model_dir, frontend.pid, engines=2)
    successor.dispatcher.start()
    for name in names:
        assert successor.ask(Prompt(session_id=name, prompt="Hi", max_new_tokens=1))["turn"] == 1
    successor.dispatcher.close()


def test_a_fork_is_where_its_source_is(
    model_dir: Path, frontend: subprocess.Popen[bytes], runtime: Path
) -> None:
    """It is found there afterwards, also by the next worker; an id that another engine knows is refused."""
    worker = Worker(model_dir, frontend.pid, engines=2)
    worker.dispatcher.start()
    for name in ("a", "b"):  # one on each
        worker.ask(Open(session_id=name), opens=True)
        worker.ask(Prompt(session_id=name, prompt="Hi", max_new_tokens=1))
    for source in ("a", "b"):
        fork = Fork(session_id=source, new_session_id=f"{source}2")
        assert worker.ask(fork, opens=True)["turn"] == 1
        assert worker.ask(fork, opens=True)["error"]["code"] == "session_exists"
        again = Prompt(session_id=f"{source}2", prompt="Hi", max_new_tokens=1)
        assert worker.ask(again)["turn"] == 2
    with pytest.raises(SessionExists):
        worker.submit(Fork(session_id="a", new_session_id="b"), opens=True)
    assert worker.ask(Info(session_id="b"))["turns"] == 1
    worker.dispatcher.close()
    successor = Worker(model_dir, frontend.pid, engines=2)
    successor.dispatcher.start()
    for name in ("a", "a2", "b", "b2"):
        assert successor.ask(Info(session_id=name))["session_id"] == name
    successor.dispatcher.close()


def test_a_model_that_cannot_be_loaded_is_named(
    frontend: subprocess.Popen[bytes], runtime: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The error has the end of the engine's log, where the reason is."""
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    worker = Worker(runtime, frontend.pid, model="no-such-model")
    with pytest.raises(EngineDied, match="no-such-model"):
        worker.dispatcher.start()


def test_a_folder_of_somebody_else_is_refused(runtime: Path) -> None:
    """A link in its place could be anybody's."""
    (runtime / f"ts-stateful-{os.getuid()}").symlink_to(runtime)
    with pytest.raises(RuntimeError, match="not a folder of this user"):
        runtime_folder(1, "x")


def test_a_path_too_long_for_a_socket_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The message says which variable moves it."""
    monkeypatch.setenv("TS_STATEFUL_RUNTIME_DIR", str(tmp_path / ("x" * 100)))
    with pytest.raises(RuntimeError, match="TS_STATEFUL_RUNTIME_DIR"):
        runtime_folder(1, "x")


@pytest.mark.parametrize(
    ("handler", "expected"),
    [({}, ["cpu"]), ({"engines": 3}, ["cpu"] * 3), ({"device": "cpu", "engines": "auto"}, ["cpu"])],
)
def test_there_is_an_engine_a_device(
    handler: dict[str, Any], expected: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Or as many as were asked for."""
    monkeypatch.setattr("torch.cuda.device_count", lambda: 0)
    assert devices(load_config({"handler": handler}).handler) == expected
