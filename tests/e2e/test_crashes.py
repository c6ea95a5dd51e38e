"""Engines, workers and servers that die in mid-sentence: nobody who speaks to them notices more than a pause."""

from __future__ import annotations

import os
import random
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.e2e.server import profile_server
from tests.e2e.speak import SCENE, eventually
from ts_stateful.client import Session, connect
from ts_stateful.config import Profile
from ts_stateful.torchserve import TorchServe

# `make test PYTEST_ARGS=tests/e2e/test_crashes.py KILLS=100` for more.
KILLS = int(os.environ.get("KILLS", "2"))
NUM_SESSIONS = 16
NUM_TURNS = 2


@pytest.fixture(scope="module", params=list(Profile), ids=lambda profile: profile.value)
def profile(request: pytest.FixtureRequest) -> Profile:
    """Each profile in turn."""
    chosen: Profile = request.param
    return chosen


@pytest.fixture
def server(profile: Profile, request: pytest.FixtureRequest) -> TorchServe:
    """The shared server of that profile: nobody notices."""
    shared: TorchServe = request.getfixturevalue(f"{profile.value}_server")
    return shared


def parameters(session: int, turn: int) -> dict[str, Any]:
    """Every other session samples."""
    sampled = {"temperature": 1.0, "seed": 100 * session + turn} if session % 2 else {}
    return {"max_new_tokens": 120, "ignore_eos": True, **sampled}


@pytest.fixture
def sessions(server: TorchServe, profile: Profile) -> Iterator[list[Session]]:
    """Sessions of which every other pair speaks HTTP, where that streams."""
    http = profile is not Profile.SEQUENCE
    with ExitStack() as stack:
        urls = [server.grpc_url, server.http_url if http else server.grpc_url]
        connections = [stack.enter_context(connect(url)) for url in urls]
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


def kill_engine(server: TorchServe) -> None:
    """Kills the engine and waits for the next one to be on its way."""
    (engine,) = server.engines()
    engine.kill()
    eventually(lambda: bool({process.pid for process in server.engines()} - {engine.pid}))


def test_killed_engines_are_not_noticed(server: TorchServe, sessions: list[Session]) -> None:
    """Sixteen sessions at once, killed at any moment: no error, no character lost or doubled, sampled and greedy."""
    calm = talk_all(sessions)
    rng = random.Random(5)
    with ThreadPoolExecutor(1) as pool:
        killed = 0
        while killed < KILLS:
            talking = pool.submit(talk_all, sessions)
            while killed < KILLS and not wait([talking], rng.uniform(0.0, 12.0)).done:
                kill_engine(server)
                killed += 1
            assert talking.result() == calm


def test_worker_and_engine_killed_at_once(continuous_server: TorchServe) -> None:
    """Nothing is left but the store: what was said stays, and the reply that was running is the one that it would have been.

    In the other profiles TorchServe itself does not get over the death of a worker.
    """
    server = continuous_server
    with connect(server.grpc_url) as connection:
        replies = []
        for kills in (False, True):
            with connection.open(images=[SCENE]) as session:
                assert session.ask("What color is the circle?") == "red"
                reply = session.prompt("And the square?", max_new_tokens=400, ignore_eos=True)
                pieces = iter(reply)
                text = next(pieces)
                if kills:
                    (worker,) = server.describe()["workers"]
                    for process in (psutil.Process(int(worker["pid"])), *server.engines()):
                        process.kill()
                replies.append(text + "".join(pieces))
                assert session.info().turns == 2
        assert replies[0] == replies[1]


def test_a_restarted_server_has_its_sessions(tmp_path: Path) -> None:
    """After SIGTERM and a new start, on the same folder: images, turns and what may be repeated."""
    store = {"url": (tmp_path / "store").as_uri()}
    profile = Profile.CONTINUOUS
    server = profile_server(profile, tmp_path, name="restart", handler={"store": store})
    with server, connect(server.grpc_url) as connection:
        session = connection.open(images=[SCENE])
        assert session.ask("What color is the circle?") == "red"
    server = profile_server(profile, tmp_path, name="restarted", handler={"store": store})
    with (
        server,
        connect(server.grpc_url) as connection,
        connection.attach(session.session_id) as session,
    ):
        assert session.info().turns == 1
        assert session.ask("And the square?") == "blue"
        assert session.info().turns == 2
