"""Whatever a client calls an image: the right pixels or a clear refusal, and everybody else goes on."""

from __future__ import annotations

import socket
from collections.abc import Callable
from typing import Any

import PIL.Image
import pytest

from tests.e2e.speak import SCENE, SCENE_BASE64, Speaker, error_of
from tests.support.hostile import bomb
from tests.support.pictures import encoded, png_base64
from ts_stateful.media.addresses import is_local_name, is_public_address


def picture(mode: str, size: tuple[int, int] = (64, 64), **options: Any) -> str:
    with PIL.Image.open(SCENE) as scene:
        return png_base64(scene.convert("RGB").resize(size).convert(mode, **options))


def rotated() -> bytes:
    """The scene lying on its side, with an EXIF note that says so."""
    with PIL.Image.open(SCENE) as scene:
        exif = PIL.Image.Exif()
        exif[0x0112] = 6
        turned = scene.convert("RGB").transpose(PIL.Image.Transpose.ROTATE_90)
        return encoded(turned, "JPEG", exif=exif, quality=95)


def animated() -> bytes:
    """The scene, followed by frames of nothing."""
    with PIL.Image.open(SCENE) as scene:
        first = scene.convert("RGB")
    blank = PIL.Image.new("RGB", first.size, "white")
    return encoded(first, "GIF", save_all=True, append_images=[blank] * 5)


def cmyk() -> bytes:
    """The scene in the colors of printers."""
    with PIL.Image.open(SCENE) as scene:
        return encoded(scene.convert("CMYK"), "JPEG", quality=95)


def page() -> bytes:
    """A picture that is a web page as well."""
    return SCENE.read_bytes() + b"<html><script>alert(1)</script></html>"


def profiled() -> bytes:
    """The scene with a color profile and a note of megabytes each, of which nothing is true."""
    with PIL.Image.open(SCENE) as scene:
        junk = bytes(2_000_000)
        return encoded(scene.convert("RGB"), "PNG", icc_profile=junk, exif=b"Exif\0\0" + junk)


def frames(kind: str, number: int) -> bytes:
    """The scene, and other frames."""
    with PIL.Image.open(SCENE) as scene:
        first = scene.convert("RGB")
    more = [PIL.Image.new("RGB", first.size, (n % 256, n // 256, 0)) for n in range(number)]
    return encoded(first, kind, save_all=True, append_images=more)


@pytest.mark.parametrize(
    ("data", "status", "code"),
    [
        pytest.param(b"this is text", 400, "media_invalid", id="text"),
        pytest.param(b"", 400, "media_invalid", id="empty"),
        pytest.param(SCENE.read_bytes()[:300], 400, "media_invalid", id="truncated"),
        pytest.param(b"<svg xmlns='http://www.w3.org/2000/svg'/>", 400, "media_invalid", id="svg"),
        pytest.param(bomb(), 413, "media_too_large", id="bomb"),
        pytest.param(frames("TIFF", 20), 400, "media_invalid", id="pages"),
        pytest.param(profiled(), 400, "media_invalid", id="profile"),
    ],
)
def test_what_is_no_image_is_refused(speaker: Speaker, data: bytes, status: int, code: str) -> None:
    """With the field, without a word of the library that found out; no session comes of it."""
    response = speaker.post(
        files={"data": (None, '{"type": "open"}', "application/json"), "file": ("x", data)}
    )
    assert response.status_code == status
    assert error_of(response.json()) == (code, status)
    assert response.json()["error"]["field"] == "files[0]"
    assert "session_id" not in response.json()
    assert not {"PIL", "Pillow", "cannot identify", "Traceback"} & set(response.text.split())


@pytest.mark.parametrize("text", ["", "!!!!", "QUJD=", "data:image/png;base64,AAAA", "Zm9v"])
def test_base64_that_is_no_image_is_refused(speaker: Speaker, text: str) -> None:
    """Wrong letters, wrong padding, or right ones of something else."""
    response = speaker.post({"type": "open", "images": [{"base64": text}]})
    assert error_of(response.json()) == ("media_invalid", 400)
    assert response.json()["error"]["field"] == "images[0].base64"


@pytest.mark.parametrize(
    "make",
    [
        pytest.param(lambda: picture("RGB", (1, 1)), id="1x1"),
        pytest.param(lambda: picture("RGB", (1, 2000)), id="1x2000"),
        pytest.param(lambda: picture("L"), id="grayscale"),
        pytest.param(lambda: picture("LA"), id="grayscale with alpha"),
        pytest.param(lambda: picture("1"), id="bilevel"),
        pytest.param(lambda: picture("RGB", (1, 10_000)), id="1x10000"),
        pytest.param(lambda: picture("I;16"), id="16 bit"),
    ],
)
def test_odd_images_are_taken(speaker: Speaker, make: Callable[[], str]) -> None:
    """They are images, if strange ones."""
    session = speaker.open(images=[{"base64": make()}])
    assert "text" in speaker.ask({"prompt": "How many shapes are there?"}, session=session)
    speaker.ask({"type": "close"}, session=session)


@pytest.mark.parametrize(
    "make",
    [
        pytest.param(lambda: picture("RGBA", (320, 240)), id="rgba"),
        pytest.param(lambda: picture("P", (320, 240)), id="palette"),
    ],
)
def test_other_modes_show_the_same_picture(speaker: Speaker, make: Callable[[], str]) -> None:
    """The model sees what a person would see."""
    session = speaker.open(images=[{"base64": make()}])
    assert speaker.ask({"prompt": "What color is the circle?"}, session=session)["text"] == "red"
    assert speaker.ask({"prompt": "And the square?"}, session=session)["text"] == "blue"
    speaker.ask({"type": "close"}, session=session)


@pytest.mark.parametrize(
    "data",
    [
        pytest.param(rotated(), id="exif"),
        pytest.param(animated(), id="animated"),
        pytest.param(frames("GIF", 2000), id="frames"),
        pytest.param(page(), id="polyglot"),
        pytest.param(cmyk(), id="cmyk"),
    ],
)
def test_photographs_and_animations_are_seen_rightly(speaker: Speaker, data: bytes) -> None:
    """Turned upright by their EXIF note; of several frames the first. Whatever else is in a file does nothing."""
    form = {"data": (None, '{"type": "open"}', "application/json"), "file": ("x", data)}
    session = speaker.post(files=form).json()["session_id"]
    assert speaker.ask({"prompt": "What color is the circle?"}, session=session)["text"] == "red"
    answer = speaker.ask({"prompt": "How many shapes are there?"}, session=session)
    assert answer["text"] == "three"
    speaker.ask({"type": "close"}, session=session)


@pytest.mark.parametrize(
    "url",
    [
        "https://127.0.0.1/x.png",
        "https://169.254.169.254/latest/meta-data/",
        "https://[::1]/x.png",
        "https://[::ffff:10.0.0.1]/x.png",
        "https://[fd00:ec2::254]/x.png",
        "https://2130706433/x.png",
        "https://0x7f.1/x.png",
        "https://0177.0.0.1/x.png",
        "https://0.0.0.0/x.png",
        "https://10.1.2.3/x.png",
        "https://100.64.0.1/x.png",
        "https://[2002:7f00:1::]/x.png",
        "https://[64:ff9b::7f00:1]/x.png",
        "https://127.0.0.1./x.png",
        "https://\uff11\uff12\uff17.0.0.1/x.png",
        "https://localhost/x.png",
        "https://example.com\\@127.0.0.1/x.png",
        "https://user:password@example.com/x.png",
        "http://example.com/x.png",
        "file:///etc/passwd",
        "ftp://example.com/x.png",
        "gopher://example.com/",
    ],
)
def test_urls_to_forbidden_places_are_refused(speaker: Speaker, url: str) -> None:
    """403 with the field; nothing is fetched."""
    response = speaker.post({"type": "open", "images": [{"url": url}]})
    assert error_of(response.json()) == ("media_forbidden", 403)
    assert response.json()["error"]["field"] == "images[0].url"


def test_a_name_of_a_private_address_is_refused(speaker: Speaker) -> None:
    """What counts is where a name leads; no connection is made to it. This machine's own name is such a one, as a rule."""
    name = socket.gethostname()
    try:
        address = socket.getaddrinfo(name, None, socket.AF_INET)[0][4][0]
        listener = socket.create_server((str(address), 0))
    except OSError:
        pytest.skip(f"{name} is no name of an address of this machine")
    if is_local_name(name.lower()) or is_public_address(str(address)):
        pytest.skip(f"{name} is refused, or allowed, for another reason")
    with listener:
        listener.setblocking(False)
        url = f"https://{name}:{listener.getsockname()[1]}/x.png"
        response = speaker.post({"type": "open", "images": [{"url": url}]})
        assert error_of(response.json()) == ("media_forbidden", 403)
        with pytest.raises(BlockingIOError):
            listener.accept()


def test_a_data_url_is_an_image(speaker: Speaker) -> None:
    """Browsers and OpenAI clients send those."""
    session = speaker.open(images=[{"url": f"data:image/png;base64,{SCENE_BASE64}"}])
    assert speaker.ask({"prompt": "What color is the circle?"}, session=session)["text"] == "red"
    speaker.ask({"type": "close"}, session=session)
