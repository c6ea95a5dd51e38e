"""One model under three names, a profile each, in one TorchServe: they share an engine and the sessions (`engineGroup`)."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from threading import Event
from typing import Any

import httpx
import psutil
import pytest

from tests.e2e.server import ENDLESS, START_TIMEOUT_S, pack, profile_server
from tests.e2e.speak import DEADLINE_S, DIALOGUE, SCENE, eventually
from ts_stateful.client import Server, Session, connect
from ts_stateful.client.management import Management
from ts_stateful.protocol.profile import Profile
from ts_stateful.serving.server import LocalServer

LONG: dict[str, Any] = {"max_new_tokens": 400, "ignore_eos": True}
PATIENCE_S = "10"  # of the doctor: longer than a busy machine takes for one answer, and waited for what is dead
MODELS = {f"chat-{profile.value}": profile for profile in (Profile.SEQUENCE, Profile.ASYNC)}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalServer]:
    """TorchServe with `chat` (continuous), `chat-sequence` and `chat-async`."""
    folder = tmp_path_factory.mktemp("group")
    server = profile_server(
        Profile.CONTINUOUS,
        folder,
        name="group",
        endless=True,
        handler={"engineGroup": "chat"},
        environ={"TS_ENABLE_MODEL_API": "true"},
        watch=False,  # the doctor is to find the fault
        batchSize=17,
        maxNumSequence=16,
    )
    for name, profile in MODELS.items():
        config = ["--config", str(folder / "model-config.yaml"), "--profile", profile.value]
        pack(folder / "archive", "--name", name, *config, model=folder / "model")
    with server:
        for name in MODELS:
            register(server, name)
        yield server


def register(server: LocalServer, name: str) -> None:
    """As an operator does."""
    management = Management(server.management_url)
    management.register(name, f"{name}.mar", START_TIMEOUT_S)
    management.close()


@pytest.fixture
def servers(server: LocalServer) -> Iterator[dict[str, Server]]:
    """A connection to each, over gRPC."""
    with ExitStack() as stack:
        yield {
            name: stack.enter_context(connect(server.grpc_url, model=name))
            for name in ("chat", *MODELS)
        }


def through(servers: dict[str, Server], session: Session) -> dict[str, Session]:
    """A session as it is reached under each name."""
    return {name: server.attach(session.session_id) for name, server in servers.items()}


def worker(server: LocalServer, name: str) -> dict[str, Any]:
    """What TorchServe says of the worker of one of them."""
    url = f"{server.management_url}/models/{name}"
    answer = httpx.get(url, timeout=DEADLINE_S, trust_env=False)
    ((found,),) = [description["workers"] for description in answer.json()]
    return dict(found)


def test_one_session_speaks_every_profile(server: LocalServer, servers: dict[str, Server]) -> None:
    """Opened through one, gone on with through the next, pulled here and pushed there, whoever is asked remembers."""
    assert len(server.engines()) == 1
    assert {name: one.hello().profile for name, one in servers.items()} == {
        "chat": "continuous",
        "chat-sequence": "sequence",
        "chat-async": "async",
    }
    with servers["chat"].open(images=[SCENE]) as session:
        names = ["chat-sequence", "chat-async", "chat"]
        for number, (question, expected) in enumerate(DIALOGUE):
            reached = servers[names[number % 3]].attach(session.session_id)
            assert "".join(reached.prompt(question)) == expected
        assert session.info().turns == len(DIALOGUE)


def test_a_pushed_stream_is_gone_on_with_and_cancelled_elsewhere(
    servers: dict[str, Server],
) -> None:
    """By `continue` and `cancel` under another name."""
    with servers["chat"].open(images=[SCENE]) as session:
        pushed = servers["chat-sequence"].attach(session.session_id)
        reply = pushed.prompt(**ENDLESS)
        pieces = iter(reply)
        first = next(pieces)
        part = session.continue_(1)
        assert part.more
        assert part.text.startswith(first) or first.startswith(part.text)
        assert session.cancel().cancelled
        assert first + "".join(pieces) == reply.text
        assert reply.finish_reason == "cancelled"
        assert session.continue_(1).text == reply.text


def test_when_the_engine_dies_all_go_on(server: LocalServer, servers: dict[str, Server]) -> None:
    """Streams through every name at once; one engine takes its place, and they get what they would have got."""
    with ExitStack() as stack, ThreadPoolExecutor(6) as pool:
        sessions = [
            stack.enter_context(one.open(images=[SCENE])) for one in servers.values() for _ in "ab"
        ]

        begun = Event()

        def speak(session: Session) -> str:
            pieces = iter(session.prompt("What color is the circle?", **LONG))
            first = next(pieces)
            begun.set()
            return first + "".join(pieces)

        calm = list(pool.map(speak, sessions))
        for session in sessions:
            session.rewind(0)
        (engine,) = server.engines()
        begun.clear()
        speaking = [pool.submit(speak, session) for session in sessions]
        assert begun.wait(DEADLINE_S)
        engine.kill()
        assert [future.result() for future in speaking] == calm
    (successor,) = server.engines()
    assert successor.pid != engine.pid


def test_a_doctor_revives_what_torchserve_has_given_up(
    server: LocalServer, servers: dict[str, Server]
) -> None:
    """The worker of the sequence profile dies: that is found and put right, and its session goes on as it was."""

    def doctor(*options: str) -> subprocess.CompletedProcess[str]:
        addresses = ["--url", server.http_url, "--management-url", server.management_url]
        command = [sys.executable, "-m", "ts_stateful.cli", "doctor", "--model", "chat-sequence"]
        return subprocess.run(
            [*command, *addresses, *options], capture_output=True, text=True, check=False
        )

    healthy = doctor("--timeout", "60")
    assert healthy.returncode == 0, healthy.stdout
    pushed = servers["chat-sequence"]
    with pushed.open(images=[SCENE]) as session:
        for question, expected in DIALOGUE[:2]:
            assert session.ask(question) == expected
        (engine,) = server.engines()
        psutil.Process(int(worker(server, "chat-sequence")["pid"])).kill()
        eventually(lambda: worker(server, "chat-sequence")["status"] != "READY")
        eventually(lambda: not psutil.pid_exists(int(worker(server, "chat-sequence")["pid"])))
        found = doctor("--timeout", PATIENCE_S)
        assert found.returncode == 1
        assert found.stdout.startswith("error: worker: its process exited")
        assert servers["chat"].hello().profile == "continuous"  # a worker of its own
        repaired = doctor("--repair", "--timeout", PATIENCE_S)
        assert repaired.returncode == 0, repaired.stdout
        assert "register it again" in repaired.stdout
        for question, expected in DIALOGUE[2:]:
            assert session.ask(question) == expected
        assert [one.pid for one in server.engines()] == [engine.pid]
