"""Images that lead nowhere, crash their decoder or are as large as allowed: other clients do not notice."""

from __future__ import annotations

import base64
import contextlib
import gzip
import os
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import PIL.Image
import psutil
import pytest

from tests.e2e.server import profile_server
from tests.e2e.speak import SCENE, Speaker, error_of, eventually
from tests.support.hostile import SVG
from tests.support.pictures import encoded, png_base64
from tests.support.web import Site, answer, endless, raw, redirect
from ts_stateful.process.names import name_of
from ts_stateful.protocol.profile import Profile
from ts_stateful.serving.server import LocalServer

_SHARE = 16  # handler.media.fetchesPerClient
_MEGAPIXELS = 40
_MAX_GROWTH = 1_000_000_000  # bytes; 8 images of 40 megapixels at once took 1.76 GB
_POLL_S = 0.02
_BUSY_S = 0.5  # of processor time: longer than any other image takes


class BlackHole:
    """A server on loopback that takes connections and never answers. `connected` counts them."""

    def __init__(self) -> None:
        self._listener = socket.create_server(("127.0.0.1", 0), backlog=256)
        self.port: int = self._listener.getsockname()[1]
        self._held: list[socket.socket] = []
        self._thread = threading.Thread(target=self._accept, daemon=True)
        self._thread.start()

    @property
    def num_connections(self) -> int:
        """Connections that were ever made."""
        return len(self._held)

    def close(self) -> None:
        """Refuse new connections, and end those that wait. Idempotent."""
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._thread.join()
        self._listener.close()
        for connection in self._held:
            connection.close()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                self._held.append(self._listener.accept()[0])


@pytest.fixture(scope="module")
def black_hole() -> Iterator[BlackHole]:
    """The server that URLs lead to, which a test closes."""
    black_hole = BlackHole()
    yield black_hole
    black_hole.close()


@pytest.fixture(scope="module")
def site() -> Iterator[Site]:
    """A web server whose answers lie."""
    site = Site()
    head = b"HTTP/1.1 200 OK\r\n"
    site.routes |= {
        "/endless": endless(b"\r\n", bytes(100_000)),
        "/short": raw(head + b"Content-Length: 1000\r\n\r\nx"),
        "/long": raw(head + b"Content-Length: 99999999999\r\n\r\nx"),
        "/gzip": answer(gzip.compress(bytes(100_000_000)), Content_Encoding="gzip"),
        "/away": redirect("http://169.254.169.254:22/"),
        "/file": redirect("file:///etc/passwd"),
        "/svg": answer(SVG, Content_Type="image/png"),
    }
    yield site
    site.stop()


@pytest.fixture(scope="module")
def server(
    black_hole: BlackHole, site: Site, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[LocalServer]:
    """A server that may fetch from this machine, and waits for longer than a test takes.

    Without TorchServe: the engine fetches and decodes, whatever its front is.
    """
    media: dict[str, Any] = {
        "allowedSchemes": ["http", "data"],
        "allowPrivateAddresses": True,
        "allowedPorts": [black_hole.port, site.server_port],
        "timeoutSec": 1000,
        "decodeTimeoutSec": 100,
    }
    folder = tmp_path_factory.mktemp("images")
    handler = {"media": media}
    name = "hostile-images"
    with profile_server(Profile.ASGI, folder, name=name, handler=handler) as server:
        yield server


@pytest.fixture
def speaker(server: LocalServer, speak: Callable[[LocalServer], Speaker]) -> Speaker:
    """Plain HTTP to that server."""
    return speak(server)


def engine_of(server: LocalServer) -> psutil.Process:
    (engine,) = server.engines()
    return engine


def decoders_of(server: LocalServer) -> list[psutil.Process]:
    """Find the living decoders of the engine."""
    children = engine_of(server).children()
    return [each for each in children if name_of(each.pid) == "ts-decoder" and lives(each)]


def lives(process: psutil.Process) -> bool:
    try:
        return bool(process.status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False


def flat(shade: int) -> str:
    """Make an image of 40 megapixels in 120 kB."""
    picture = PIL.Image.new("RGB", (8000, _MEGAPIXELS * 125), (shade, 100, 200))
    return base64.b64encode(encoded(picture)).decode()


def scene(shade: int) -> str:
    """Make a scene that the server has not seen: a pixel in its corner differs."""
    with PIL.Image.open(SCENE) as file:
        picture = file.convert("RGB")
    picture.putpixel((0, 0), (shade, 255, 255))
    return png_base64(picture)


def slow() -> str:
    """Make an image that takes seconds to decode: 40 megapixels in 90 scans."""
    data = encoded(PIL.Image.new("L", (8000, 5000)), "JPEG", progressive=True)
    last_scan = data[data.rindex(b"\xff\xda") : -2]
    return base64.b64encode(data[:-2] + last_scan * 90 + data[-2:]).decode()


def opening(*images: str) -> dict[str, Any]:
    return {"type": "open", "images": [{"base64": image} for image in images]}


def test_images_from_nowhere_delay_no_inline_image(
    speaker: Speaker, black_hole: BlackHole, speak: Callable[[LocalServer], Speaker]
) -> None:
    """24 requests with 8 URLs each are all still waiting when another client's image has been answered."""
    url = f"http://127.0.0.1:{black_hole.port}/"
    dead = {"type": "open", "images": [{"url": url}] * 8}
    other = speak(speaker.server)
    with ThreadPoolExecutor(24) as threads:
        answers: list[Future[httpx.Response]] = [
            threads.submit(speaker.post, dead) for _ in range(24)
        ]
        try:
            eventually(lambda: black_hole.num_connections >= _SHARE)
            session = other.ask(opening(scene(1)))["session_id"]
            asked = other.ask({"prompt": "What color is the circle?"}, session=session)
            assert asked["text"] == "red"
            assert not any(answer.done() for answer in answers)
            assert black_hole.num_connections == _SHARE  # the others wait in the client's queue
        finally:
            black_hole.close()
        assert {error_of(answer.result().json()) for answer in answers} == {("media_invalid", 400)}


@pytest.mark.parametrize(
    ("path", "codes"),
    [
        ("/endless", {"media_too_large"}),
        ("/short", {"media_invalid"}),
        ("/long", {"media_too_large"}),
        ("/gzip", {"media_too_large", "media_invalid"}),
        ("/away", {"media_forbidden", "media_invalid"}),
        ("/file", {"media_forbidden", "media_invalid"}),
        ("/svg", {"media_invalid"}),
    ],
)
def test_servers_of_images_that_lie_are_cut_off(
    speaker: Speaker, site: Site, path: str, codes: set[str]
) -> None:
    """While their answer comes."""
    response = speaker.post({"type": "open", "images": [{"url": site.url + path}]})
    assert response.json()["error"]["code"] in codes
    assert response.json()["error"]["field"] == "images[0].url"


def test_too_many_images_are_refused_before_they_are_fetched(speaker: Speaker, site: Site) -> None:
    """The number is known without them."""
    before = len(site.paths)
    refused = speaker.post({"type": "open", "images": [{"url": f"{site.url}/svg"}] * 9})
    assert error_of(refused.json()) == ("invalid_request", 400)
    assert len(site.paths) == before


def test_only_allowed_ports_are_fetched_from(speaker: Speaker) -> None:
    """Not even on a host that is allowed."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.setblocking(False)
        port = listener.getsockname()[1]
        refused = speaker.post({"type": "open", "images": [{"url": f"http://127.0.0.1:{port}/"}]})
        assert error_of(refused.json()) == ("media_forbidden", 403)
        with pytest.raises(BlockingIOError):
            listener.accept()


def test_a_request_survives_its_decoder(speaker: Speaker) -> None:
    """A decoder that is killed in the middle of an image is replaced, and the image decoded again."""
    engine = engine_of(speaker.server)
    eventually(lambda: bool(decoders_of(speaker.server)))
    stopped = decoders_of(speaker.server)
    for decoder in stopped:
        os.kill(decoder.pid, signal.SIGSTOP)
    with ThreadPoolExecutor(1) as threads:
        answer = threads.submit(speaker.ask, opening(scene(2)))
        for decoder in stopped:
            os.kill(decoder.pid, signal.SIGKILL)
        session = answer.result()["session_id"]
    assert speaker.ask({"prompt": "What color is the circle?"}, session=session)["text"] == "red"
    assert engine_of(speaker.server) == engine
    (log,) = Path(engine.environ()["TMPDIR"]).rglob("engine-0.log")
    assert "another one decodes the file again" in log.read_text()


def kill_busy_decoders(server: LocalServer, until: Callable[[], bool]) -> int:
    """Kill each decoder that computes for long, as a bug of a parser would; return their number."""
    begun_s: dict[int, float] = {}
    killed = 0
    while not until():
        for decoder in decoders_of(server):
            with contextlib.suppress(psutil.NoSuchProcess):
                used_s = decoder.cpu_times().user
                if used_s - begun_s.setdefault(decoder.pid, used_s) > _BUSY_S:
                    decoder.kill()
                    decoder.wait()
                    killed += 1
        time.sleep(_POLL_S)
    return killed


def test_an_image_that_kills_decoders_is_refused(
    speaker: Speaker, speak: Callable[[LocalServer], Speaker]
) -> None:
    """Alone: images of another client that are decoded meanwhile are answered, by the same engine."""
    engine = engine_of(speaker.server)
    other, image = speak(speaker.server), slow()
    with ThreadPoolExecutor(2) as threads:
        answer = threads.submit(speaker.post, opening(image))
        others = [threads.submit(other.ask, opening(scene(shade))) for shade in range(3, 9)]
        assert kill_busy_decoders(speaker.server, answer.done) == 2
        assert all(each.result()["session_id"] for each in others)
        assert error_of(answer.result().json()) == ("media_invalid", 400)
        assert "crashed" in answer.result().json()["error"]["message"]
    assert engine_of(speaker.server) == engine


def peak_of(process: psutil.Process) -> int:
    """Return the most bytes that a process had in memory since its mark was reset."""
    for line in Path(f"/proc/{process.pid}/status").read_text().splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) * 1024
    raise AssertionError("no mark")


def test_large_images_are_not_in_memory_together(speaker: Speaker) -> None:
    """Eight images of 40 megapixels in one request: engine and decoders together grow by less than a GB."""
    speaker.ask(opening(scene(100)))
    engine = engine_of(speaker.server)
    Path(f"/proc/{engine.pid}/clear_refs").write_text("5")
    before = peak_of(engine)
    images = [flat(shade) for shade in range(8)]
    assert sum(map(len, images)) < 2_000_000
    session = speaker.ask(opening(*images))["session_id"]
    grown = peak_of(engine) - before
    used = [peak_of(each) for each in decoders_of(speaker.server)]
    assert grown + max(used) < _MAX_GROWTH
    assert session
