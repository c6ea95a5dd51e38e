"""In the profiles in which clients share more than the machine: after each bad input, somebody else goes on.

For `continuous`, where every test of `test_bad_requests` and `test_bad_images` ends with that, nothing is repeated here. In the
`sequence` profile TorchServe keeps a place for every id that it has seen, so all of it is sent in the name of one session.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import httpx
import pytest

from tests.e2e.speak import HEADER, SCENE, SCENE_BASE64, Innocent, Speaker, error_of
from tests.support.hostile import DEEP, JSON, bomb
from ts_stateful.serving.server import LocalServer

Send = Callable[[Speaker, str], httpx.Response]
Attack = tuple[Send, str]  # and the code of the error that it gets


def body(content: bytes) -> Send:
    """Bytes under the name of JSON."""
    return lambda speaker, victim: speaker.post(content=content, headers=JSON, session=victim)


def document(document: dict[str, Any]) -> Send:
    """JSON that makes no sense."""
    return lambda speaker, victim: speaker.post(document, session=victim)


def file(content: bytes) -> Send:
    """A form with a file that is not what it should be."""
    form = {"data": (None, '{"prompt": "?"}', "application/json"), "file": ("x", content)}
    return lambda speaker, victim: speaker.post(files=form, session=victim)


def url(url: str) -> Send:
    """An image from somewhere."""
    return document({"prompt": "?", "images": [{"url": url}]})


ATTACKS: dict[str, list[Attack]] = {
    "bodies": [
        (body(b"hello"), "invalid_request"),
        (body(b""), "invalid_request"),
        (body(b"\0" * 100), "invalid_request"),
        (body(DEEP), "invalid_request"),
        (body(b'{"prompt": "\xff\xfe"}'), "invalid_request"),
        (body(b'{"prompt": "x", "temperature": NaN}'), "invalid_request"),
    ],
    "requests": [
        (document({"type": "dance"}), "invalid_request"),
        (document({"prompt": "x", "x" * 100_000: 1}), "invalid_request"),
        (document({"type": "info", "session_id": "other"}), "session_id_mismatch"),
        (document({"type": "open"}), "session_exists"),
        (document({"prompt": "x", "turn": 7}), "turn_gap"),
        (document({"prompt": "x" * 10_000_000}), "context_too_long"),
    ],
    "images": [
        (file(b"this is text"), "media_invalid"),
        (file(SCENE.read_bytes()[:300]), "media_invalid"),
        (file(bomb()), "media_too_large"),
        (url("https://169.254.169.254/latest/meta-data/"), "media_forbidden"),
        (url("file:///etc/passwd"), "media_forbidden"),
        (document({"prompt": "x", "images": [{"base64": SCENE_BASE64}] * 9}), "invalid_request"),
    ],
}


@pytest.fixture(params=["sequence", "async", "asgi"])
def speaker(request: pytest.FixtureRequest, speak: Callable[[LocalServer], Speaker]) -> Speaker:
    """A client of each of these profiles in turn."""
    return speak(request.getfixturevalue(f"{request.param}_server"))


@pytest.mark.parametrize("kind", ATTACKS)
def test_an_innocent_session_goes_on(speaker: Speaker, kind: str) -> None:
    """Its next question is answered rightly after each bad input, and the session that was misused still stands."""
    victim = speaker.open()
    with Innocent(speaker) as innocent:
        for send, code in ATTACKS[kind]:
            assert error_of(send(speaker, victim).json())[0] == code
            innocent.goes_on()
    answer = speaker.ask({"prompt": "What color is the circle?"}, session=victim)
    assert (answer["text"], answer["turn"]) == ("red", 1)
    speaker.ask({"type": "close"}, session=victim)


def test_an_id_cannot_end_a_session(speaker: Speaker) -> None:
    """TorchServe takes `;` for a separator and its headers for orders; the ids of others in them do nothing."""
    with Innocent(speaker) as innocent:
        for ids in (f"x;{innocent.session}", f"{innocent.session};x", innocent.session + ";"):
            headers = {HEADER: ids, "ts_request_sequence_end": "true"}
            response = speaker.post({"type": "close"}, headers=headers)
            assert error_of(response.json()) == ("invalid_request", 400)
            innocent.goes_on()
