"""gRPC calls that are half-closed, cancelled or wrong: they end no worker. One that is lost all the same is replaced."""

from __future__ import annotations

import contextlib
import itertools
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import grpc
import httpx
import psutil
import pytest

from tests.e2e.server import ROOT, log_path, profile_server
from tests.e2e.speak import DIALOGUE, HEADER, SCENE, Speaker, eventually
from ts_stateful.client import RetryPolicy, Session, connect
from ts_stateful.client.management import Management
from ts_stateful.pb.inference_pb2_grpc import InferenceAPIsServiceStub
from ts_stateful.protocol.profile import TORCHSERVE_PROFILES, Profile
from ts_stateful.serving.server import LocalServer
from ts_stateful.serving.server_log import ServerLog
from ts_stateful.torchserve.guard import Guard
from ts_stateful.torchserve.java import java_environment

NUM_CALLS = 60
AT_ONCE = 8
CALL_S = 2.0
ANSWER_S = 1.0  # for a healthy server; a lost request of a client that looks for an answer
HEALED_S = 5.0
STOP_S = 60.0
TURN_S = 240.0
HELLO = {"type": "hello"}
STREAM: dict[str, Any] = {"prompt": "?", "stream": True, "max_new_tokens": 50, "ignore_eos": True}
LONG: dict[str, Any] = {"max_new_tokens": 80, "ignore_eos": True}

PYTHONPATH = os.pathsep.join(filter(None, sys.path))

Attack = Callable[[Any, int], object]


def half_closed(stub: Any, _number: int) -> object:
    """One message with an id, and the end of the stream at once."""
    message = Speaker.message(HELLO, session="attacker")
    return list(stub.StreamPredictions2(iter([message]), timeout=CALL_S))


def cancelled(stub: Any, number: int) -> object:
    """A call whose deadline ends it at another moment each time, also after it was half-closed."""
    timeout = 0.001 * (number % 12)
    message = Speaker.message(STREAM, session="attacker")
    if number % 3 == 0:
        return stub.Predictions(message, timeout=timeout)
    if number % 3 == 1:
        return list(stub.StreamPredictions(message, timeout=timeout))
    return list(stub.StreamPredictions2(iter([message]), timeout=timeout))


def wrong(stub: Any, number: int) -> object:
    """A unary call that passes for a stream, a stream that does not, and a sequence without an id."""
    lie = Speaker.message(STREAM, rpc=b"StreamPredictions")
    if number % 3 == 0:
        return stub.Predictions(lie, timeout=CALL_S / 4)
    if number % 3 == 1:
        return list(stub.StreamPredictions(Speaker.message(STREAM), timeout=CALL_S / 4))
    return list(stub.StreamPredictions2(iter([lie]), timeout=CALL_S / 4))


ATTACKS: dict[str, Attack] = {
    "half-closed": half_closed,
    "cancelled": cancelled,
    "wrong": wrong,
}


class Victim:
    """A server, and its worker at the time of the attack."""

    def __init__(self, server: LocalServer) -> None:
        self.server = server
        (worker,) = server.describe()["workers"]
        self._worker = psutil.Process(worker["pid"])
        self.attacked_at = 0.0

    @property
    def has_lost_its_worker(self) -> bool:
        """Whether the process has exited."""
        with contextlib.suppress(psutil.Error):
            return bool(self._worker.status() == psutil.STATUS_ZOMBIE)
        return True

    def attack(self, attack: Attack) -> bool:
        """Attack with calls beside each other until the worker is lost, which shows a moment later; return whether it was."""
        channel = grpc.insecure_channel(self.server.grpc_url.removeprefix("grpc://"))

        def call(number: int) -> None:
            if not self.has_lost_its_worker:
                self.attacked_at = time.monotonic()
                with contextlib.suppress(grpc.RpcError):
                    attack(stub, number)

        with channel, ThreadPoolExecutor(AT_ONCE) as pool:
            stub = InferenceAPIsServiceStub(channel)  # type: ignore[no-untyped-call]
            list(pool.map(call, range(NUM_CALLS)))
        return self.has_lost_its_worker

    def loses_its_worker(self) -> None:
        """Attack until the worker is lost: it takes an answer after the end of its call."""
        eventually(lambda: self.attack(half_closed))

    def answers(self) -> bool:
        """Whether a new client gets an answer."""
        url = f"{self.server.http_url}/predictions/{self.server.name}"
        with contextlib.suppress(httpx.HTTPError):
            answer = httpx.post(
                url, json=HELLO, headers={HEADER: "other"}, timeout=ANSWER_S, trust_env=False
            )
            return answer.status_code == 200
        return False

    def healed_s(self) -> float:
        """Wait for an answer; return the time since the last attack."""
        eventually(self.answers)
        return time.monotonic() - self.attacked_at


def talk(session: Session, until: threading.Event) -> list[str]:
    """Ask the questions of the dialogue at least once, and again until the end; from the beginning each time."""
    replies = []
    for number in itertools.count():
        answers = [session.prompt(question).result() for question, _ in DIALOGUE]
        assert answers == [answer for _, answer in DIALOGUE]
        replies.append("".join(session.prompt("What color is the circle?", **LONG)))
        assert session.info().turns == len(DIALOGUE) + 1
        assert session.rewind(0).turn == 0
        if number and until.is_set():
            break
    return replies


@pytest.mark.parametrize("kind", ATTACKS)
@pytest.mark.parametrize("profile", TORCHSERVE_PROFILES, ids=lambda profile: profile.value)
def test_others_are_served_again(
    profile: Profile,
    kind: str,
    mortal_server: LocalServer,
    record_property: Callable[[str, object], None],
) -> None:
    """At once, by the same worker; a session that was open all the time has lost nothing."""
    server = mortal_server
    engines = [engine.pid for engine in server.engines()]
    victim, over = Victim(server), threading.Event()
    policy = RetryPolicy(stall_s=5, max_retries=40)
    with (
        connect(server.grpc_url, timeout_s=TURN_S, policy=policy) as connection,
        connection.open(images=[SCENE]) as session,
        ThreadPoolExecutor(1) as pool,
    ):
        talking = pool.submit(talk, session, over)
        try:
            lost = victim.attack(ATTACKS[kind])
            healed_s = victim.healed_s()
        finally:
            over.set()
        assert len(set(talking.result())) == 1
    record_property("healed_s", healed_s)
    print(f"{profile.value}, {kind}: lost its worker: {lost}, an answer after {healed_s:.1f} s")
    assert not lost
    assert healed_s < HEALED_S
    assert [engine.pid for engine in server.engines()] == engines


def test_without_the_watch_torchserve_is_left_alone(tmp_path: Path) -> None:
    """The model stays lost, and /ping Healthy, until a watch begins."""
    server = profile_server(Profile.CONTINUOUS, tmp_path, name="unwatched", watch=False)
    with server:
        victim, log = Victim(server), ServerLog()
        before = server.describe()["workers"]
        victim.loses_its_worker()
        for _ in range(4):  # a watch begins a repair in half a second
            assert not victim.answers()
        assert server.describe()["workers"] == before
        assert server.is_ready()
        guard = Guard(Management(server.management_url), log)
        guard.start()
        try:
            victim.healed_s()
        finally:
            guard.stop()
            guard.join(STOP_S)
        assert "error: worker: the process of chat exited" in str(log)


class Container:
    """A TorchServe that the entrypoint of a container has started."""

    def __init__(self, server: LocalServer, folder: Path) -> None:
        self.server = server  # its ports and its name; it is never started itself
        self._folder = folder
        (self._archive,) = (folder / "archive").glob("*.mar")

    def __enter__(self) -> LocalServer:
        archive, properties = self._archive, self._folder / "config.properties"
        base = (ROOT / "config.properties").read_text()
        properties.write_text(f"{base}\n{self.server.ports.as_properties()}")
        command = [sys.executable, "-m", "ts_stateful.torchserve.entrypoint"]
        command += [sys.executable, "-m", "ts.model_server", "--start", "--foreground"]
        command += ["--no-config-snapshots", "--model-store", str(archive.parent)]
        command += ["--models", f"chat={archive.name}", "--ts-config", properties.name]
        command += ["--log-config", str(ROOT / "log4j2.xml")]
        self._temporary = tempfile.TemporaryDirectory(prefix="ts-")  # its name must be short
        environ = {**os.environ, "TMPDIR": self._temporary.name, "PYTHONPATH": PYTHONPATH}
        environ |= java_environment(environ)
        with log_path("container").open("w") as log:
            self._process = subprocess.Popen(
                command, cwd=self._folder, env=environ, stdout=log, stderr=log
            )
        eventually(lambda: self._process.poll() is not None or self.server.is_ready())
        return self.server

    def __exit__(self, *_: object) -> None:
        self._process.send_signal(signal.SIGTERM)
        self._process.wait(STOP_S)
        self._temporary.cleanup()


def test_calls_end_no_worker_in_a_container(tmp_path: Path) -> None:
    """The entrypoint mends TorchServe's class in the working directory."""
    server = profile_server(Profile.CONTINUOUS, tmp_path, name="contained")
    with Container(server, tmp_path):
        victim = Victim(server)
        assert not victim.attack(half_closed)
        assert victim.healed_s() < HEALED_S


def test_the_entrypoint_of_a_container_watches(tmp_path: Path) -> None:
    """It finds the management API by itself; a worker is lost here because the classes cannot be written."""
    server = profile_server(Profile.CONTINUOUS, tmp_path, name="contained")
    (tmp_path / "org").write_text("a file where a folder is needed")
    with Container(server, tmp_path):
        victim = Victim(server)
        victim.loses_its_worker()
        victim.healed_s()
    log = log_path("container").read_text()
    assert "warning: a client can stop a worker" in log
    assert "ts_stateful.supervisor: error: worker: the process of chat exited" in log
