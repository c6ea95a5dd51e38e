"""All images of one request."""

from __future__ import annotations

import base64
import io
import os
import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest
from PIL import Image as Pictures

from tests.support.decoders import idle_pids
from tests.support.web import Names
from ts_stateful.config.schema import MediaConfig
from ts_stateful.media.fetch import Fetcher
from ts_stateful.media.load import MediaFile, MediaLoader, UploadedMedia
from ts_stateful.protocol.errors import (
    InvalidRequest,
    MediaForbidden,
    MediaInvalid,
    MediaTooLarge,
    QuotaExceeded,
)
from ts_stateful.protocol.requests import Image

DECODE = MediaFile.decode_image


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
    images = [Image(url=url(1)), UploadedMedia(upload="0" * 64, data=png(2))]
    files = make().load(images, [png(3)], lambda file: (file.data, file.field)).result()
    assert files[1] == (png(2), "images[1].upload")


@pytest.mark.parametrize("workers", [1, 4])
def test_images_come_in_order(make: Make, workers: int) -> None:
    """Images of every kind come as RGB in the order of the request, attachments last."""
    images = [Image(url=url(1)), Image(base64=text(2)), Image(url=url(3)), Image(base64=text(4))]
    pictures = make(workers=workers).load(images, [png(5), png(6)], DECODE).result()
    assert levels(pictures) == [1, 2, 3, 4, 5, 6]
    assert {picture.mode for picture in pictures} == {"RGB"}


def test_a_file_that_is_recognized_need_not_be_decoded(make: Make) -> None:
    """The caller's function decides the result, and its errors are raised."""
    images = [Image(url=url(1)), Image(base64="aGVsbG8=")]
    files = make().load(images, [b"text"], lambda file: (file.data, file.field)).result()
    assert files == [
        (png(1), "images[0].url"),
        (b"hello", "images[1].base64"),
        (b"text", "files[0]"),
    ]
    with pytest.raises(ZeroDivisionError):
        make().load(images, [], lambda _: 1 // 0).result()


def test_no_images_are_no_work(make: Make) -> None:
    """A request without images loads nothing."""
    assert make().load([], [], DECODE).result() == []


def test_too_many_images_are_refused_before_any_fetch(make: Make) -> None:
    """Attachments count too, and no name is looked up for a request with too many."""
    asked: list[str] = []

    def resolver(host: str, port: int) -> list[str]:
        asked.append(host)
        return []

    loader = make(resolver, max_images=3)
    with pytest.raises(InvalidRequest) as caught:
        loader.load([Image(url="https://example.com/")] * 3, [png(1)], DECODE).result()
    assert (caught.value.status, caught.value.field) == (400, "images")
    assert caught.value.message == "a request takes at most 3 images; send fewer"
    assert asked == []
    assert levels(loader.load([Image(url=url(1))] * 2, [png(2)], DECODE).result()) == [1, 1, 2]


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
        make(max_bytes=1000).load(images, attachments, DECODE).result()
    assert (type(caught.value), caught.value.field) == (error, field)


def test_a_refused_image_leaves_the_loader_usable(make: Make) -> None:
    """One request's failure is its own."""
    loader = make(workers=1)
    with pytest.raises(MediaInvalid):
        loader.load([Image(base64="a")] * 8, [], DECODE).result()
    assert levels(loader.load([Image(base64=text(7))], [], DECODE).result()) == [7]


def test_images_are_loaded_at_the_same_time(make: Make) -> None:
    """As many images as there are workers are loaded at once: each waits here for the others."""
    together = threading.Barrier(3, timeout=60)
    loader = make(Names([], before=together.wait), workers=3, timeout_sec=60)
    with pytest.raises(MediaInvalid, match="resolved"):
        loader.load([Image(url="https://example.com/")] * 3, [], DECODE).result()
    assert not together.broken


def test_inline_images_do_not_wait_for_fetches(make: Make) -> None:
    """Of whatever kind they are, while all fetches of other requests wait for a name server."""
    answering = threading.Event()
    names = Names([], before=lambda: answering.wait(60))
    loader = make(names, fetches=2, fetches_per_client=2, timeout_sec=600)
    remote = [Image(url="https://example.com/")] * 8
    dead = [loader.load(remote, [], DECODE, client) for client in ("a", None, "a")]
    inline = [Image(url=url(1)), Image(base64=text(2)), UploadedMedia(upload="0", data=png(3))]
    assert levels(loader.load(inline, [png(4)], DECODE).result()) == [1, 2, 3, 4]
    assert not any(each.done() for each in dead)
    answering.set()
    for each in dead:
        assert isinstance(each.exception(), MediaInvalid)


def test_fetches_of_one_client_leave_room_for_another(make: Make) -> None:
    """A client's own limit is lower than that of all."""
    answering, asked = threading.Event(), threading.Semaphore(0)

    class OneAnswers(Names):
        def resolve(self, host: str, port: int) -> Sequence[str]:
            if host == "dead.example":
                asked.release()
                answering.wait(60)
            return []

    loader = make(OneAnswers([]), fetches=3, fetches_per_client=2, timeout_sec=600)
    dead = loader.load([Image(url="https://dead.example/")] * 8, [], DECODE, "a")
    assert asked.acquire(timeout=60)
    assert asked.acquire(timeout=60)
    other = loader.load([Image(url="https://example.com/")], [], DECODE, "b")
    with pytest.raises(MediaInvalid, match="resolved"):
        other.result(60)
    assert not asked.acquire(blocking=False)  # the rest of them wait
    answering.set()
    assert isinstance(dead.exception(), MediaInvalid)


def test_too_many_fetches_of_a_client_are_refused(make: Make) -> None:
    """As a whole, before any fetch; images that need none are not concerned."""
    answering = threading.Event()
    names = Names([], before=lambda: answering.wait(60))
    loader = make(names, fetches=1, queued_fetches=8, timeout_sec=600)
    remote = [Image(url="https://example.com/")]
    dead = loader.load(remote * 8, [], DECODE, "a")
    with pytest.raises(QuotaExceeded) as caught:
        loader.load([Image(url=url(1)), *remote], [], DECODE, "a").result()
    assert (caught.value.status, caught.value.field) == (429, "handler.media.queuedFetches")
    assert levels(loader.load([Image(url=url(1))], [], DECODE, "a").result()) == [1]
    other = loader.load(remote, [], DECODE, "b")
    answering.set()
    assert isinstance(dead.exception(), MediaInvalid)
    assert isinstance(other.exception(), MediaInvalid)
    assert len(names.asked) <= 3  # after the refused image at most one more had begun


def test_a_decoder_that_dies_in_the_middle_fails_no_request(make: Make) -> None:
    """Its image is decoded again, those of other requests go on."""
    loader = make()

    def read(file: MediaFile) -> Pictures.Image:
        for pid in idle_pids(loader.decoders):
            os.kill(pid, signal.SIGKILL)
        return file.decode_image()

    futures = [loader.load([Image(base64=text(n))], [png(n)], read) for n in range(1, 9)]
    assert [levels(each.result()) for each in futures] == [[n, n] for n in range(1, 9)]


def test_a_closed_loader_is_a_defect(make: Make) -> None:
    """A load after close is the caller's mistake and raises no media error."""
    loader = make()
    loader.close()
    with pytest.raises(RuntimeError):
        loader.load([Image(base64=text(1))], [], DECODE).result()
