"""Images of turns, loaded on threads of their own."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from concurrent.futures import Future
from functools import partial
from typing import Protocol

from ts_stateful.engine.services import WorkQueue
from ts_stateful.language.vision.encoder import ImageInput
from ts_stateful.language.vision.known_urls import KnownImages
from ts_stateful.media.load import ImageFile
from ts_stateful.protocol.defects import defect
from ts_stateful.protocol.errors import StatefulError
from ts_stateful.protocol.requests import Image

__all__ = ["ImageFiles", "ImageLoader", "Loaded", "ReadImage"]

Loaded = list[ImageInput] | StatefulError
ReadImage = Callable[[ImageFile], ImageInput]


class ImageFiles(Protocol):
    """The source of image files; see `media.load.MediaLoader`."""

    def load(
        self,
        images: Sequence[Image],
        attachments: Sequence[bytes],
        read: ReadImage,
        client: Hashable,
        /,
    ) -> Future[list[ImageInput]]:
        """Begin to load files; the future has what `read` makes of each."""
        ...


class ImageLoader:
    """Loads images; results arrive through the engine's queue."""

    def __init__(self, files: ImageFiles, queue: WorkQueue) -> None:
        self._files = files
        self._queue = queue

    def load(
        self,
        images: Sequence[Image],
        attachments: Sequence[bytes],
        *,
        client: Hashable,
        known: Mapping[str, ImageInput],
        read: ReadImage,
        then: Callable[[Loaded], None],
    ) -> None:
        """Begin to load `images`, but those whose URL is `known`, and `attachments`; pass them or the error to `then`.

        `client` is the principal that the fetches are counted for, None for an anonymous one.
        """
        shown = KnownImages(images, known)

        def loaded(done: Future[list[ImageInput]]) -> None:
            self._queue.put(partial(then, _outcome(shown, done)))

        self._files.load(shown.unknown, attachments, read, client).add_done_callback(loaded)


def _outcome(shown: KnownImages, done: Future[list[ImageInput]]) -> Loaded:
    error = done.exception()
    if error is None:
        return shown.merge(done.result())
    # The boundary of a media thread: a defect fails its request.
    outcome = (
        shown.renumber(error)
        if isinstance(error, StatefulError)
        else defect(error, "loading images")
    )
    error.__traceback__ = None  # its frames would hold the session
    return outcome
