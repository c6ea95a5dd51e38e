"""Images that are sent again: which are loaded, and their names in errors."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from ts_stateful.language.vision.encoder import ImageInput
from ts_stateful.language.vision.known_urls import load_unknown, urls_of
from ts_stateful.protocol.errors import MediaForbidden
from ts_stateful.protocol.requests import Image


def seen(key: str) -> ImageInput:
    return ImageInput(key, [], None, {})


IMAGES = [Image(url="https://a"), Image(base64="AA=="), Image(url="https://b")]
KNOWN = {"https://a": seen("a")}


def test_only_what_is_not_known_is_loaded() -> None:
    """Order is kept, and files come last."""

    def load(images: Sequence[Image]) -> list[ImageInput]:
        assert images == IMAGES[1:]
        return [seen("inline"), seen("b"), seen("file")]

    made = load_unknown(IMAGES, KNOWN, load)
    assert [image.key for image in made] == ["a", "inline", "b", "file"]


@pytest.mark.parametrize(
    ("field", "called"),
    [
        ("images[1].url", "images[2].url"),
        ("images[0].base64", "images[1].base64"),
        ("files[0]", "files[0]"),
        (None, None),
    ],
)
def test_an_error_names_the_image_by_its_place_among_all(
    field: str | None, called: str | None
) -> None:
    """As the client has sent them."""

    def load(images: Sequence[Image]) -> list[ImageInput]:
        raise MediaForbidden("no", field=field)

    with pytest.raises(MediaForbidden) as refusal:
        load_unknown(IMAGES, KNOWN, load)
    assert refusal.value.field == called


def test_images_are_known_by_the_urls_of_servers_alone() -> None:
    """A `data:` URL brings its content every time."""
    images = [Image(url="HTTPS://a"), Image(url="Data:image/png;base64,AA=="), Image(base64="AA==")]
    made = [seen("a"), seen("b"), seen("c")]
    assert urls_of(images, made) == {"HTTPS://a": made[0]}
