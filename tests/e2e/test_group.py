"""One model under three names, a profile each, in one TorchServe: they share an engine and the sessions (`engineGroup`)."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from typing import Any

import httpx
import psutil
import pytest

from tests.e2e.server import START_TIMEOUT_S, pack, profile_server
from tests.e2e.speak import DIALOGUE, SCENE, eventually
from ts_stateful.client import Server, Session, connect
from ts_stateful.client.management import Management
from ts_stateful.config import Profile
from ts_stateful.torchserve import TorchServe

LONG: dict[str, Any] = {"max_new_tokens": 400, "ignore_eos": True}
MODELS = {f"chat-{profile.value}": profile for profile in (Profile.SEQUENCE, Profile.ASYNC)}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TorchServe]:
    """TorchServe with `chat` (continuous), `chat-sequence` and `chat-async`."""
    folder = tmp_path_factory.mktemp("group")
    server = profile_server(
        Profile.CONTINUOUS,
        folder,
        name="group",
        handler={"engineGroup": "chat"},
        environ={"TS_ENABLE_MODEL_API": "true"},
        batchSize=17,
        maxNumSequence=16,
    )
    for name, profile in MODELS.items():
        config = ["--config", str(folder / "model-config.yaml"), "--profile", profile.value]
        pack(folder / "archive", "--name", name, *config)
    with server:
        for name in MODELS:
            register(server, name)
        yield server


def register(server: TorchServe, name: str) -> None:
    """As an operator does."""
    management = Management(server.management_url)
    management.register(name, f"{name}.mar", START_TIMEOUT_S)
    management.close()


@pytest.fixture
def servers(server: TorchServe) -> Iterator[dict[str, Server]]:
    """A connection to each, over gRPC."""
    with ExitStack() as stack:
        yield {
            name: stack.enter_context(connect(server.grpc_url, model=name))
            for name in ("chat", *MODELS)
        }


def through(servers: dict[str, Server], session: Session) -> dict[str, Session]:
    """A session as it is reached under each name."""
    return {name: server.attach(session.session_id) for name, server in servers.items()}


def worker_pid(server: TorchServe, name: str) -> int:
    """The process of the worker of one of them."""
    answer = httpx.get(f"{server.management_url}/models/{name}", trust_env=False)
    ((worker,),) = [description["workers"] for description in answer.json()]
    return int(worker["pid"])


def test_one_session_speaks_every_profile(server: TorchServe, servers: dict[str, Server]) -> None:
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
        reply = pushed.prompt("What color is the circle?", max_new_tokens=3000, ignore_eos=True)
        pieces = iter(reply)
        first = next(pieces)
        part = session.continue_(1)
        assert part.more
        assert part.text.startswith(first) or first.startswith(part.text)
        assert session.cancel().cancelled
        assert first + "".join(pieces) == reply.text
        assert reply.finish_reason == "cancelled"
        assert session.continue_(1).text == reply.text


def test_when_the_engine_dies_all_go_on(server: TorchServe, servers: dict[str, Server]) -> None:
    """Streams through every name at once; one engine takes its place, and they get what they would have got."""
    with ExitStack() as stack, ThreadPoolExecutor(6) as pool:
        sessions = [
            stack.enter_context(one.open(images=[SCENE])) for one in servers.values() for _ in "ab"
        ]

        def speak(session: Session) -> str:
            return "".join(session.prompt("What color is the circle?", **LONG))

        calm = list(pool.map(speak, sessions))
        for session in sessions:
            session.rewind(0)
        (engine,) = server.engines()
        speaking = [pool.submit(speak, session) for session in sessions]
        eventually(lambda: any(session.info().running for session in sessions[:2]))
        engine.kill()
        assert [future.result() for future in speaking] == calm
    (successor,) = server.engines()
    assert successor.pid != engine.pid


def test_a_doctor_revives_what_torchserve_has_given_up(
    server: TorchServe, servers: dict[str, Server]
) -> None:
    """The worker of the sequence profile dies: that is found and put right, and its session goes on as it was."""

    def doctor(*options: str) -> subprocess.CompletedProcess[str]:
        addresses = ["--url", server.http_url, "--management-url", server.management_url]
        command = [sys.executable, "-m", "ts_stateful.cli", "doctor", "--model", "chat-sequence"]
        return subprocess.run(
            [*command, *addresses, *options], capture_output=True, text=True, check=False
        )

    assert doctor().returncode == 0, doctor().stdout
    pushed = servers["chat-sequence"]
    with pushed.open(images=[SCENE]) as session:
        for question, expected in DIALOGUE[:2]:
            assert session.ask(question) == expected
        (engine,) = server.engines()
        psutil.Process(worker_pid(server, "chat-sequence")).kill()
        eventually(lambda: not psutil.pid_exists(worker_pid(server, "chat-sequence")))
        found = doctor("--timeout", "2")
        assert found.returncode == 1
        assert found.stdout.startswith("error: worker: its process is gone")
        assert servers["chat"].hello().profile == "continuous"  # a worker of its own
        repaired = doctor("--repair", "--timeout", "2")
        assert repaired.returncode == 0, repaired.stdout
        assert "unregistered, and registered again" in repaired.stdout
        for question, expected in DIALOGUE[2:]:
            assert session.ask(question) == expected
        assert [one.pid for one in server.engines()] == [engine.pid]
