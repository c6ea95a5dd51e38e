"""Images that are sent again: which are loaded, and their names in errors."""

from __future__ import annotations

import pytest

from ts_stateful.language.encoders.encoder import MediaInput
from ts_stateful.language.encoders.loader import KnownImages, urls_of
from ts_stateful.protocol.errors import MediaForbidden
from ts_stateful.protocol.requests import Audio, Image


def seen(key: str) -> MediaInput:
    return MediaInput(key, [], None, {})


IMAGES = [Image(url="https://a"), Image(base64="AA=="), Image(url="https://b")]
CLIPS = [Audio(upload="0" * 64), Audio(url="https://c"), Audio(url="https://d")]
MIXED = [IMAGES[0], *CLIPS[:2], *IMAGES[1:], CLIPS[2]]
KNOWN = {"https://a": seen("a"), "https://c": seen("c")}


def test_only_what_is_not_known_is_loaded() -> None:
    """Order is kept, and files come last."""
    shown = KnownImages(IMAGES, KNOWN)
    assert shown.unknown == IMAGES[1:]
    made = shown.merge([seen("inline"), seen("b"), seen("file")])
    assert [image.key for image in made] == ["a", "inline", "b", "file"]


@pytest.mark.parametrize(
    ("field", "called"),
    [
        ("images[1].url", "images[2].url"),
        ("images[0].base64", "images[1].base64"),
        ("audio[0].upload", "audio[0].upload"),
        ("audio[1].url", "audio[2].url"),
        ("files[0]", "files[0]"),
        (None, None),
    ],
)
def test_an_error_names_the_image_by_its_place_among_all(
    field: str | None, called: str | None
) -> None:
    """As the client has sent them; images and clips are counted apart."""
    error = KnownImages(MIXED, KNOWN).renumber(MediaForbidden("no", field=field))
    assert error.field == called


def test_images_are_known_by_the_urls_of_servers_alone() -> None:
    """A `data:` URL brings its content every time."""
    images = [Image(url="HTTPS://a"), Image(url="Data:image/png;base64,AA=="), Image(base64="AA==")]
    made = [seen("a"), seen("b"), seen("c")]
    assert urls_of(images, made) == {"HTTPS://a": made[0]}
