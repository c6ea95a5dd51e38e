"""Images of turns, loaded on threads of their own."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Executor
from functools import partial
from typing import Protocol

from ts_stateful.engine.services import WorkQueue
from ts_stateful.language.vision.encoder import ImageInput
from ts_stateful.language.vision.known_urls import load_unknown
from ts_stateful.media import ImageFile
from ts_stateful.protocol.defects import defect
from ts_stateful.protocol.errors import StatefulError
from ts_stateful.protocol.requests import Image

__all__ = ["ImageFiles", "ImageLoader", "Loaded", "ReadImage"]

Loaded = list[ImageInput] | StatefulError
ReadImage = Callable[[ImageFile], ImageInput]


class ImageFiles(Protocol):
    """The source of image files; see `media.MediaLoader`."""

    def load(
        self, images: Sequence[Image], attachments: Sequence[bytes], read: ReadImage, /
    ) -> list[ImageInput]:
        """Return what `read` makes of each file."""
        ...


class ImageLoader:
    """Loads images on `executor`; results arrive through the engine's queue."""

    def __init__(self, files: ImageFiles, executor: Executor, queue: WorkQueue) -> None:
        self._files = files
        self._executor = executor
        self._queue = queue

    def load(
        self,
        images: Sequence[Image],
        attachments: Sequence[bytes],
        *,
        known: Mapping[str, ImageInput],
        read: ReadImage,
        then: Callable[[Loaded], None],
    ) -> None:
        """Begin to load `images`, but those whose URL is `known`, and `attachments`; pass them or the error to `then`."""

        def run() -> None:
            loaded: Loaded
            try:
                loaded = load_unknown(
                    images, known, lambda some: self._files.load(some, attachments, read)
                )
            except StatefulError as error:
                loaded = error.with_traceback(None)  # its frames would hold the session
            except Exception as error:  # the boundary of a media thread
                loaded = defect(error, "loading images")
            self._queue.put(partial(then, loaded))

        self._executor.submit(run)
