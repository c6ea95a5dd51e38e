"""The same image again: encoded once on the server, however often and in whatever file it comes."""

from __future__ import annotations

import base64
import io
from collections.abc import Callable
from typing import NamedTuple

import PIL.Image
import pytest

from tests.e2e.speak import SCENE, Speaker
from tests.support.pictures import png_base64
from ts_stateful.serving.server import LocalServer

QUESTION = {"prompt": "What color is the circle?"}


class Count(NamedTuple):
    """Images that the engine has encoded, and those that it found encoded."""

    encoded: int
    found: int


@pytest.fixture
def speaker(async_server: LocalServer, speak: Callable[[LocalServer], Speaker]) -> Speaker:
    """Plain HTTP to the shared server of the profile in which the management API tells the figures."""
    return speak(async_server)


def count(speaker: Speaker) -> Count:
    """What the figures are now."""
    url = f"http://127.0.0.1:{speaker.server.ports.management}/models/chat?customized=true"
    (model,) = speaker.http.get(url).json()
    stats = model["customizedMetadata"]
    return Count(stats["images_encoded"], stats["shared_hits"])


def scene(shade: int) -> PIL.Image.Image:
    """The demo scene with a pixel in its corner that only one test knows."""
    with PIL.Image.open(SCENE) as file:
        picture = file.convert("RGB")
    picture.putpixel((0, 0), (shade, 255, 255))
    return picture


def saved(picture: PIL.Image.Image, kind: str, **options: int) -> str:
    """A picture as another file, in base64."""
    file = io.BytesIO()
    picture.save(file, kind, **options)
    return base64.b64encode(file.getvalue()).decode()


def ask(speaker: Speaker, image: str, **fields: object) -> str:
    """Opens a session on an image and asks about it; returns the session's id."""
    opening = {"type": "open", "images": [{"base64": image}], **fields}
    session = str(speaker.ask(opening)["session_id"])
    assert speaker.ask(QUESTION, session=session)["text"] == "red"
    return session


def test_the_same_image_again_is_not_encoded_again(speaker: Speaker) -> None:
    """Beside the first session, after both were closed, and as other files with the same pixels."""
    picture = scene(254)
    files = [
        png_base64(picture),
        png_base64(picture),
        saved(picture, "PNG", compress_level=0),
        saved(picture, "BMP"),
    ]
    assert len(set(files)) == 3
    before = count(speaker)
    sessions = [ask(speaker, file) for file in files[:2]]
    for session in sessions:
        speaker.ask({"type": "close"}, session=session)
    sessions = [ask(speaker, file) for file in files]
    for session in sessions:
        speaker.ask({"type": "close"}, session=session)
    assert count(speaker) == Count(before.encoded + 1, before.found + 5)


def test_tenants_share_no_image(speaker: Speaker) -> None:
    """Each has it encoded once; what one has shown cannot be told from the time that it takes another."""
    image = png_base64(scene(253))
    before = count(speaker)
    for tenant in ("a", "b", "a", "b"):
        session = ask(speaker, image, metadata={"tenant": tenant})
        speaker.ask({"type": "close"}, session=session)
    assert count(speaker) == Count(before.encoded + 2, before.found + 2)
