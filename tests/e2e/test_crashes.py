"""Engines, workers and servers that die in mid-sentence: nobody who speaks to them notices more than a pause."""

from __future__ import annotations

import os
import random
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.e2e.server import profile_server
from tests.e2e.speak import SCENE, eventually
from ts_stateful.client import ClientError, RetryPolicy, Session, connect
from ts_stateful.process.drain import is_alive
from ts_stateful.protocol.errors import EngineUnavailable
from ts_stateful.protocol.profile import Profile
from ts_stateful.serving.ports import Ports
from ts_stateful.serving.server import LocalServer

# `make test PYTEST_ARGS=tests/e2e/test_crashes.py KILLS=100` for more, and VICTIMS=engine for no others.
KILLS = int(os.environ.get("KILLS", "2"))
VICTIMS = os.environ.get("VICTIMS", "engine,worker").split(",")
NUM_SESSIONS = 16
NUM_TURNS = 2
TURN_S = 600.0  # several engines may have to load in one turn, on a busy machine
LONG: dict[str, Any] = {"max_new_tokens": 400, "ignore_eos": True}


@pytest.fixture(scope="module", params=list(Profile), ids=lambda profile: profile.value)
def profile(request: pytest.FixtureRequest) -> Profile:
    """Each profile in turn."""
    chosen: Profile = request.param
    return chosen


def parameters(session: int, turn: int) -> dict[str, Any]:
    """Every other session samples."""
    sampled = {"temperature": 1.0, "seed": 100 * session + turn} if session % 2 else {}
    return {"max_new_tokens": 80, "ignore_eos": True, **sampled}


@pytest.fixture
def sessions(mortal_server: LocalServer, profile: Profile) -> Iterator[list[Session]]:
    """Sessions of which every other pair speaks HTTP, where that streams."""
    http = profile is not Profile.SEQUENCE
    # What a dead worker has hangs where TorchServe does not notice; and it takes time to register a model again.
    policy = RetryPolicy(stall_s=10, max_retries=20)
    with ExitStack() as stack:
        urls = [mortal_server.grpc_url, mortal_server.http_url if http else mortal_server.grpc_url]
        connections = [
            stack.enter_context(connect(url, timeout_s=TURN_S, policy=policy)) for url in urls
        ]
        yield [
            stack.enter_context(connections[number // 2 % 2].open(images=[SCENE]))
            for number in range(NUM_SESSIONS)
        ]


def talk(session: Session, number: int) -> list[str]:
    """What one session is told, streamed and not, from its beginning."""
    replies = []
    for turn in range(NUM_TURNS):
        reply = session.prompt("What color is the circle?", **parameters(number, turn))
        replies.append("".join(reply) if number % 4 < 2 else reply.result())
    assert session.rewind(0).turn == 0
    return replies


def talk_all(sessions: list[Session]) -> list[list[str]]:
    """What all of them are told at the same time."""
    with ThreadPoolExecutor(NUM_SESSIONS) as pool:
        return list(pool.map(talk, sessions, range(NUM_SESSIONS)))


def worker_pid(server: LocalServer) -> int:
    """The process of TorchServe's worker."""
    (worker,) = server.describe()["workers"]
    return int(worker["pid"])


def has_other_worker(server: LocalServer, pid: int) -> bool:
    """Whether another worker than that one is ready; a model that is being registered has none."""
    with suppress(ValueError):
        return server.is_ready() and worker_pid(server) != pid
    return False


def kill(server: LocalServer, *, worker: bool, while_it_loads: bool) -> None:
    """Kills the engine or the worker, and waits until the next one is there, or at least on its way."""
    victim = psutil.Process(worker_pid(server)) if worker else server.engines()[0]
    victim.kill()
    if worker:
        eventually(lambda: has_other_worker(server, victim.pid))
    else:
        eventually(lambda: bool({one.pid for one in server.engines()} - {victim.pid}))
    if not while_it_loads:
        with connect(server.grpc_url, timeout_s=TURN_S) as connection:
            connection.hello()


@pytest.mark.timeout(240 + 30 * KILLS)
def test_kills_are_not_noticed(
    mortal_server: LocalServer, profile: Profile, sessions: list[Session]
) -> None:
    """Sixteen sessions at once, killed at any moment: no error, no character lost or doubled, sampled and greedy.

    Every other kill is one of the worker, but in the async profile, where TorchServe may go on with two of them.
    """
    began = time.monotonic()
    calm = talk_all(sessions)
    calm_s = time.monotonic() - began
    rng = random.Random(5)
    mixed = "worker" in VICTIMS and profile is not Profile.ASYNC
    with ThreadPoolExecutor(1) as pool:
        killed = 0
        while killed < KILLS:
            talking = pool.submit(talk_all, sessions)
            while killed < KILLS and not wait([talking], rng.uniform(0.0, calm_s)).done:
                worker = mixed and killed % 2 == 1
                kill(mortal_server, worker=worker, while_it_loads=killed % 4 == 2)
                killed += 1
            assert talking.result() == calm


def test_worker_and_engine_killed_at_once(continuous_server: LocalServer) -> None:
    """Nothing is left but the store: what was said stays, and the reply that was running is the one that it would have been.

    In the other profiles TorchServe itself does not get over the death of a worker.
    """
    server = continuous_server
    with connect(server.grpc_url) as connection:
        replies = []
        for kills in (False, True):
            with connection.open(images=[SCENE]) as session:
                assert session.ask("What color is the circle?") == "red"
                reply = session.prompt("And the square?", **LONG)
                pieces = iter(reply)
                text = next(pieces)
                if kills:
                    for process in (psutil.Process(worker_pid(server)), *server.engines()):
                        process.kill()
                replies.append(text + "".join(pieces))
                assert session.info().turns == 2
        assert replies[0] == replies[1]


def test_a_restarted_server_has_its_sessions(tmp_path: Path) -> None:
    """After SIGTERM and a new start, on the same folder: images, turns, and the turn that was running.

    TorchServe breaks its connections off at once; the engine goes on to the end of the turn, whoever asks for it.
    """
    store = {"url": (tmp_path / "store").as_uri()}
    long: dict[str, Any] = {**LONG, "max_new_tokens": 2000}
    profile = Profile.CONTINUOUS
    settings = {"store": store, "drainSec": 120}
    server = profile_server(profile, tmp_path, name="restart", handler=settings)
    hasty = connect(server.grpc_url, policy=RetryPolicy(max_retries=1))
    with server, hasty as connection, ThreadPoolExecutor(1) as pool:
        session = connection.open(images=[SCENE])
        assert session.ask("What color is the circle?") == "red"
        (engine,) = server.engines()
        java = psutil.Process(worker_pid(server)).parent()
        assert java is not None
        reply = session.prompt("And the square?", **long)
        cut_off = pool.submit(reply.result)
        eventually(lambda: bool(reply.text))
        engine.suspend()  # or it might come to the end of the turn first
        java.terminate()
        eventually(lambda: not Ports(grpc=server.ports.grpc).taken())
        engine.resume()
        with pytest.raises((ClientError, EngineUnavailable)):
            cut_off.result()
        eventually(lambda: not is_alive(engine))
        begun = reply.text
    server = profile_server(profile, tmp_path, name="restarted", handler=settings)
    with server, connect(server.http_url) as connection, ThreadPoolExecutor(1) as pool:
        session = connection.attach(session.session_id)
        assert session.info().turns == 2
        finished = session.continue_(2)
        assert finished.text.startswith(begun)
        assert finished.usage is not None
        assert finished.usage.completion_tokens == long["max_new_tokens"]
        # `make serve` and the containers' entrypoint stop the engine first: those who wait get what is said to its end.
        reply = session.prompt("And the square?", **LONG)
        pieces = iter(reply)
        next(pieces)
        engines = server.engines()
        stopping = pool.submit(server.stop)
        assert "".join(pieces)
        assert reply.finish_reason == "length"
        stopping.result()
        assert not any(map(is_alive, engines))  # no engine outlives its server
