"""What settings change on a real server: several engines behind one worker, and images from one private host."""

from __future__ import annotations

import os
import signal
import socket
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import httpx
import pytest

from tests.e2e.server import profile_server
from tests.e2e.speak import DEADLINE_S, SCENE, Speaker, error_of, eventually
from ts_stateful.protocol.profile import Profile
from ts_stateful.serving.server import LocalServer

Speak = Callable[[LocalServer], Speaker]
NUM_SESSIONS = 6
PATIENCE_S = 5.0  # with one request
ALL_PORTS = range(1, 65536)  # the server of images has any free one


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalServer]:
    """Two engines with three places each; images from any port of http://127.0.0.1 alone."""
    media = {
        "allowedSchemes": ["http", "data"],
        "allowedHosts": ["127.0.0.1"],
        "allowedPorts": list(ALL_PORTS),
        "allowPrivateAddresses": True,
        "timeoutSec": DEADLINE_S,
    }
    with profile_server(
        Profile.CONTINUOUS,
        tmp_path_factory.mktemp("settings"),
        name="settings",
        handler={"engines": 2, "media": media, "onFull": "refuse"},
        maxNumSequence=NUM_SESSIONS,
    ) as server:
        yield server


@pytest.fixture
def speaker(server: LocalServer, speak: Speak) -> Speaker:
    """Plain HTTP to that server."""
    return speak(server)


@pytest.fixture
def sessions(speaker: Speaker) -> Iterator[list[str]]:
    """As many as there may be, each with one question answered."""
    names = [speaker.open() for _ in range(NUM_SESSIONS)]
    for name in names:
        asked = speaker.ask({"prompt": "What color is the circle?"}, session=name)
        assert asked["text"] == "red"
    yield names
    for name in names:
        speaker.post({"type": "close"}, session=name)


def test_two_engines_share_the_sessions(speaker: Speaker, sessions: list[str]) -> None:
    """All of their places can be taken, and not one more; a place that gets free can be taken, whichever engine has it."""
    assert speaker.ask({"type": "hello"})["limits"]["max_sessions"] == NUM_SESSIONS
    refused = speaker.post({"type": "open"})
    assert error_of(refused.json()) == ("too_many_sessions", 429)
    for index, name in enumerate(sessions):
        assert speaker.ask({"type": "info"}, session=name)["turns"] == 1
        speaker.ask({"type": "close"}, session=name)
        sessions[index] = speaker.open()
    eventually(lambda: speaker.figure("StatefulSessionsOpen") == NUM_SESSIONS)


def test_the_death_of_one_engine_leaves_the_others_sessions(
    server: LocalServer, speaker: Speaker, sessions: list[str]
) -> None:
    """They go on, and so do those of the dead one, as soon as another is there."""
    worker, (victim, survivor) = speaker.worker_pid(), server.engines()
    os.kill(victim.pid, signal.SIGKILL)
    answers = [speaker.ask({"prompt": "And the square?"}, session=name) for name in sessions]
    assert [answer["text"] for answer in answers] == ["blue"] * NUM_SESSIONS
    places = [answer["timing"]["restored_from"] for answer in answers]
    assert places.count("store") == NUM_SESSIONS // 2
    assert survivor.pid in [engine.pid for engine in server.engines()]
    assert len(server.engines()) == 2
    assert speaker.worker_pid() == worker


def is_answered(speaker: Speaker) -> bool:
    """Whether a `hello` is; one that TorchServe has taken for a worker that dies then may never be."""
    try:
        return speaker.post({"type": "hello"}, timeout=PATIENCE_S).status_code == 200
    except httpx.TransportError:
        return False


def test_a_new_worker_finds_both_engines(speaker: Speaker, sessions: list[str]) -> None:
    """And every session where it is."""
    worker = speaker.worker_pid()
    os.kill(worker, signal.SIGKILL)
    eventually(lambda: is_answered(speaker))
    for name in sessions:
        assert speaker.ask({"prompt": "And the square?"}, session=name)["text"] == "blue"
    assert speaker.worker_pid() != worker


@pytest.fixture
def elsewhere() -> Iterator[socket.socket]:
    """A socket at another address of this machine, to which nobody may connect."""
    with socket.create_server(("127.0.0.2", 0)) as listener:
        listener.setblocking(False)
        yield listener
        with pytest.raises(BlockingIOError):
            listener.accept()


@pytest.fixture
def pictures(elsewhere: socket.socket) -> Iterator[str]:
    """A web server at the allowed address: a picture, a redirect to it, and one to elsewhere; its URL."""
    port = elsewhere.getsockname()[1]

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            moved = {"/moved": "/scene.png", "/away": f"http://127.0.0.2:{port}/scene.png"}
            if self.path in moved:
                self.send_response(302)
                self.send_header("Location", moved[self.path])
                self.end_headers()
            else:
                self.send_response(200)
                self.end_headers()
                self.wfile.write(SCENE.read_bytes())

        def log_message(self, format: str, *arguments: object) -> None:
            """Says nothing."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()


@pytest.mark.parametrize("path", ["/scene.png", "/moved"])
def test_an_image_is_fetched_from_an_allowed_host(
    speaker: Speaker, pictures: str, path: str
) -> None:
    """Also behind a redirect within it."""
    session = speaker.open(images=[{"url": pictures + path}])
    assert speaker.ask({"prompt": "Which shape is yellow?"}, session=session)["text"] == "triangle"
    speaker.ask({"type": "close"}, session=session)


def test_a_redirect_is_judged_like_the_url_that_was_sent(speaker: Speaker, pictures: str) -> None:
    """403, and no connection is made to where it leads."""
    response = speaker.post({"type": "open", "images": [{"url": f"{pictures}/away"}]})
    assert error_of(response.json()) == ("media_forbidden", 403)
