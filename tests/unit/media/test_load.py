"""All images of one request."""

from __future__ import annotations

import base64
import io
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest
from PIL import Image as Pictures

from tests.support.web import Names
from ts_stateful.config.schema import MediaConfig
from ts_stateful.media import Fetcher, ImageFile, MediaLoader, UploadedImage
from ts_stateful.protocol.errors import InvalidRequest, MediaForbidden, MediaInvalid, MediaTooLarge
from ts_stateful.protocol.requests import Image

DECODE = ImageFile.decode


def png(level: int) -> bytes:
    file = io.BytesIO()
    Pictures.new("L", (1, 1), level).save(file, "PNG")
    return file.getvalue()


def text(level: int) -> str:
    return base64.b64encode(png(level)).decode()


def url(level: int) -> str:
    return f"data:image/png;base64,{text(level)}"


def levels(pictures: Sequence[Pictures.Image]) -> list[int]:
    """Return the grey of each picture, which identifies it."""
    return [picture.getpixel((0, 0))[0] for picture in pictures]  # type: ignore[index]


Make = Callable[..., MediaLoader]


@pytest.fixture
def make() -> Iterator[Make]:
    loaders: list[MediaLoader] = []

    def make(resolver: Any = None, **settings: Any) -> MediaLoader:
        config = MediaConfig(**settings)
        fetcher = None if resolver is None else Fetcher(config, resolver=resolver)
        loaders.append(MediaLoader(config, fetcher))
        return loaders[-1]

    yield make
    for loader in loaders:
        loader.close()


def test_an_upload_is_a_file_like_any_other(make: Make) -> None:
    """It keeps its place among the other images."""
    images = [Image(url=url(1)), UploadedImage(upload="0" * 64, data=png(2))]
    files = make().load(images, [png(3)], lambda file: (file.data, file.field))
    assert files[1] == (png(2), "images[1].upload")


@pytest.mark.parametrize("workers", [1, 4])
def test_images_come_in_order(make: Make, workers: int) -> None:
    """Images of every kind come as RGB in the order of the request, attachments last."""
    images = [Image(url=url(1)), Image(base64=text(2)), Image(url=url(3)), Image(base64=text(4))]
    pictures = make(workers=workers).load(images, [png(5), png(6)], DECODE)
    assert levels(pictures) == [1, 2, 3, 4, 5, 6]
    assert {picture.mode for picture in pictures} == {"RGB"}


def test_a_file_that_is_recognized_need_not_be_decoded(make: Make) -> None:
    """The caller's function decides the result, and its errors are raised."""
    images = [Image(url=url(1)), Image(base64="aGVsbG8=")]
    files = make().load(images, [b"text"], lambda file: (file.data, file.field))
    assert files == [
        (png(1), "images[0].url"),
        (b"hello", "images[1].base64"),
        (b"text", "files[0]"),
    ]
    with pytest.raises(ZeroDivisionError):
        make().load(images, [], lambda _: 1 // 0)


def test_no_images_are_no_work(make: Make) -> None:
    """A request without images loads nothing."""
    assert make().load([], [], DECODE) == []


def test_too_many_images_are_refused_before_any_fetch(make: Make) -> None:
    """Attachments count too, and no name is looked up for a request with too many."""
    asked: list[str] = []

    def resolver(host: str, port: int) -> list[str]:
        asked.append(host)
        return []

    loader = make(resolver, max_images=3)
    with pytest.raises(InvalidRequest) as caught:
        loader.load([Image(url="https://example.com/")] * 3, [png(1)], DECODE)
    assert (caught.value.status, caught.value.field) == (400, "images")
    assert caught.value.message == "a request takes at most 3 images; send fewer"
    assert asked == []
    assert levels(loader.load([Image(url=url(1))] * 2, [png(2)], DECODE)) == [1, 1, 2]


@pytest.mark.parametrize(
    ("images", "attachments", "error", "field"),
    [
        ([Image(url=url(1)), Image(url="file:///a")], [], MediaForbidden, "images[1].url"),
        ([Image(url="data:image/png;base64,aGVsbG8=")], [], MediaInvalid, "images[0].url"),
        ([Image(url="")], [], MediaInvalid, "images[0].url"),
        ([Image(base64="")], [], MediaInvalid, "images[0].base64"),
        ([Image(base64=text(1)), Image(base64="a")], [], MediaInvalid, "images[1].base64"),
        ([Image(base64="aGVsbG8=")], [], MediaInvalid, "images[0].base64"),
        ([Image(base64="A" * 4000)], [], MediaTooLarge, "images[0].base64"),
        ([Image(url=url(1))], [png(1), b"text"], MediaInvalid, "files[1]"),
        ([], [bytes(1001)], MediaTooLarge, "files[0]"),
        ([Image(base64="a"), Image(url="file:///a")], [b""], MediaInvalid, "images[0].base64"),
    ],
)
def test_the_first_refused_image_is_named(
    make: Make, images: list[Image], attachments: list[bytes], error: type[Any], field: str
) -> None:
    """If images are refused, the error is that of the first of them, and its field names it."""
    with pytest.raises(error) as caught:
        make(max_bytes=1000).load(images, attachments, DECODE)
    assert (type(caught.value), caught.value.field) == (error, field)


def test_a_refused_image_leaves_the_loader_usable(make: Make) -> None:
    """One request's failure is its own."""
    loader = make(workers=1)
    with pytest.raises(MediaInvalid):
        loader.load([Image(base64="a")] * 8, [], DECODE)
    assert levels(loader.load([Image(base64=text(7))], [], DECODE)) == [7]


def test_images_are_loaded_at_the_same_time(make: Make) -> None:
    """As many images as there are workers are loaded at once: each waits here for the others."""
    together = threading.Barrier(3, timeout=60)
    loader = make(Names([], before=together.wait), workers=3, timeout_sec=60)
    with pytest.raises(MediaInvalid, match="resolved"):
        loader.load([Image(url="https://example.com/")] * 3, [], DECODE)
    assert not together.broken


def test_a_closed_loader_is_a_defect(make: Make) -> None:
    """A load after close is the caller's mistake and raises no media error."""
    loader = make()
    loader.close()
    with pytest.raises(RuntimeError):
        loader.load([Image(base64=text(1))], [], DECODE)
