"""A server whose model is split over two ranks, of which either dies in mid-reply."""

from __future__ import annotations

import signal
from pathlib import Path
from typing import Any

import psutil

from tests.e2e.server import profile_server
from tests.e2e.speak import DIALOGUE, SCENE, eventually
from ts_stateful.client import Session, connect
from ts_stateful.process.drain import is_alive
from ts_stateful.process.names import FOLLOWER, name_of
from ts_stateful.protocol.profile import Profile

LONG: dict[str, Any] = {"max_new_tokens": 300, "ignore_eos": True}


def followers(engine: psutil.Process) -> list[psutil.Process]:
    """The other ranks of an engine."""
    return [child for child in engine.children() if name_of(child.pid).startswith(FOLLOWER)]


def long_reply(session: Session, killed: psutil.Process | None = None) -> str:
    """A streamed reply from the beginning of the session; one process is killed after its first piece."""
    pieces = iter(session.prompt("And the square?", **LONG))
    text = next(pieces)
    if killed is not None:
        killed.send_signal(signal.SIGKILL)
    text += "".join(pieces)
    session.rewind(0)
    return text


def test_the_death_of_a_rank_is_not_noticed(tmp_path: Path) -> None:
    """The answers are right, and a reply goes on after the death of a follower, and after that of the driver."""
    handler = {"tensorParallel": 2, "device": "cpu"}
    server = profile_server(Profile.ASGI, tmp_path, name="split", handler=handler)
    with server, connect(server.http_url) as connection:
        assert connection.hello().tensor_parallel == 2
        with connection.open(images=[SCENE]) as session:
            assert [session.ask(question) for question, _ in DIALOGUE] == [a for _, a in DIALOGUE]
            session.rewind(0)
            whole = long_reply(session)
            for kills_driver in (False, True):
                (engine,) = server.engines()
                (follower,) = followers(engine)
                killed = engine if kills_driver else follower
                assert long_reply(session, killed) == whole
                eventually(lambda both=(engine, follower): not any(map(is_alive, both)))  # type: ignore[misc]
                if not kills_driver:
                    named = f"the engine exits at once: rank 1 (process {follower.pid})"
                    assert named in server.log_tail()
            assert session.ask(DIALOGUE[0][0]) == DIALOGUE[0][1]
