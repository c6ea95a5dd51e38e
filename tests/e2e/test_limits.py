"""What is too big is refused before it is parsed, on every transport, and costs no more than its bytes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import psutil
import pytest

from tests.e2e.speak import SCENE_BASE64, Innocent, Speaker, error_of
from tests.e2e.steps import Document, HttpLine, PushedLine, StreamLine, UnaryLine, new_id
from ts_stateful.serving.server import LocalServer

MB = 1_000_000
BODY_BYTES = 27_900_000  # just below `max_request_size`
NUM_BODIES = 6
_MAX_RATIO = 10.0
_FORM = "application/x-www-form-urlencoded"

LINES: dict[str, tuple[type[HttpLine | UnaryLine | PushedLine | StreamLine], ...]] = {
    "continuous": (HttpLine, UnaryLine),
    "sequence": (HttpLine, StreamLine),
    "async": (HttpLine, PushedLine),
    "asgi": (HttpLine, UnaryLine, PushedLine, StreamLine),
}


def nested(depth: int) -> Any:
    """Arrays in each other."""
    value: Any = []
    for _ in range(depth - 1):
        value = [value]
    return value


FRONTS = ["continuous", "asgi"]

REFUSED: dict[str, tuple[Document, tuple[str, int], str]] = {
    "bytes": (
        {"prompt": "x" * MB},
        ("context_too_long", 413),
        "the limit is 1000000 (handler.limits.maxJsonBytes)",
    ),
    "values": (
        {"prompt": [[]] * 50_001},
        ("invalid_request", 400),
        "more than 100000 values (handler.limits.maxJsonValues)",
    ),
    "nesting": (
        {"prompt": nested(64)},
        ("invalid_request", 400),
        "more than 64 levels deep (handler.limits.maxJsonDepth)",
    ),
    "keys of metadata": (
        {"type": "open", "metadata": {str(n): n for n in range(17)}},
        ("invalid_request", 400),
        "length <= 16",
    ),
    "a key of metadata": (
        {"type": "open", "metadata": {"n" * 65: 1}},
        ("invalid_request", 400),
        "length <= 64 as a key",
    ),
    "a text of metadata": (
        {"type": "open", "metadata": {"n": "x" * 513}},
        ("invalid_request", 400),
        "length <= 512",
    ),
}


@pytest.fixture(params=LINES)
def profile(request: pytest.FixtureRequest) -> str:
    """Every profile in turn."""
    return str(request.param)


@pytest.fixture
def speaker(
    profile: str, request: pytest.FixtureRequest, speak: Callable[[LocalServer], Speaker]
) -> Iterator[Speaker]:
    """A client of the profile's server; when a test is done with it, another client's session must go on."""
    speaker = speak(request.getfixturevalue(f"{profile}_server"))
    with Innocent(speaker) as innocent:
        yield speaker
        innocent.goes_on()


def test_what_exceeds_a_limit_is_refused(speaker: Speaker, profile: str) -> None:
    """Over HTTP and gRPC, by an error that names the limit; the session can be opened afterwards."""
    for kind in LINES[profile]:
        line = kind(speaker.server, "chat", new_id())
        for document, error, message in REFUSED.values():
            answer = line.ask(document)
            assert error_of(answer) == error
            assert message in answer["error"]["message"]
        opened = line.ask({"type": "open", "metadata": {"n" * 64: "x" * 512}})
        assert opened["session_id"] == line.session
        line.close()


@pytest.mark.parametrize("name", ["x", "x{}"])
def test_a_form_has_a_limit_of_parts(speaker: Speaker, name: str) -> None:
    """Also where all of them have the same name, of which TorchServe keeps the last."""
    form: Any = [("data", (None, '{"prompt": "x"}', "application/json"))]
    form += [(name.format(number), ("x", b"", "image/png")) for number in range(16)]
    response = speaker.post(files=form, session=new_id())
    assert error_of(response.json()) == ("invalid_request", 400)
    assert "more than 16 parts" in response.json()["error"]["message"]


def test_the_data_of_images_does_not_count(speaker: Speaker) -> None:
    """It may have more bytes than the JSON beside it."""
    session, data = new_id(), SCENE_BASE64 + "\n" * MB
    document = {"type": "open", "images": [{"base64": data}] * 2}
    assert speaker.ask(document, session=session)["session_id"] == session
    speaker.ask({"type": "close"}, session=session)


def cost_of(speaker: Speaker, content: bytes, content_type: str) -> float:
    """The seconds of processor time of the worker for several such bodies at once, while another client is answered."""
    worker = psutil.Process(speaker.worker_pid())
    headers = {"Content-Type": content_type}
    before = worker.cpu_times()
    with ThreadPoolExecutor(NUM_BODIES) as pool:
        posted = [
            pool.submit(speaker.post, content=content, headers=headers) for _ in range(NUM_BODIES)
        ]
        while not all(future.done() for future in posted):
            assert speaker.ask({"type": "hello"})["profile"] in FRONTS
    after = worker.cpu_times()
    assert {future.result().status_code for future in posted} <= {400, 413}
    return float(after.user + after.system - before.user - before.system)


@pytest.mark.parametrize("profile", FRONTS, indirect=True)
def test_values_in_big_bodies_cost_nothing(speaker: Speaker) -> None:
    """Six bodies of small values cost the worker about what as many zeros cost; parsing them costs thirty times as much."""
    zeros = cost_of(speaker, bytes(BODY_BYTES), "application/json")
    body = b'{"prompt":[' + b"[]," * (BODY_BYTES // 3 - 20) + b"[]]}"
    assert cost_of(speaker, body, "application/json") < _MAX_RATIO * zeros


@pytest.mark.parametrize("profile", FRONTS, indirect=True)
def test_fields_of_a_form_cost_little(speaker: Speaker) -> None:
    """TorchServe's own reader would take seventeen times as long for six forms of 200,000 fields as for these zeros."""
    zeros = cost_of(speaker, bytes(BODY_BYTES), "application/json")
    assert cost_of(speaker, b"a&" * 200_000, _FORM) < _MAX_RATIO * zeros


@pytest.mark.parametrize("profile", ["asgi"], indirect=True)
@pytest.mark.parametrize("filler", [b"\r\n--", b"\r\n", b"--x\r\n", b"--x\r\na:b\r\n"])
def test_forms_of_many_parts_cost_little(speaker: Speaker, filler: bytes) -> None:
    """TorchServe reads forms in Java; the front without it in Python. Lines that nearly begin a part are no parts."""
    zeros = cost_of(speaker, bytes(BODY_BYTES), "application/json")
    begun = b'--x\r\nContent-Disposition: form-data; name="data"\r\n\r\n'
    for start in (b"", begun):
        body = start + filler * ((BODY_BYTES - 100) // len(filler))
        cost = cost_of(speaker, body, "multipart/form-data; boundary=x")
        assert cost < _MAX_RATIO * zeros, (cost, zeros)
