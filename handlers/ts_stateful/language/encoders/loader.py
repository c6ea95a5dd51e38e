"""Images and clips of turns, loaded on threads of their own."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from concurrent.futures import Future
from functools import partial
from typing import Protocol

from ts_stateful.engine.services import WorkQueue
from ts_stateful.language.encoders.encoder import MediaInput
from ts_stateful.language.encoders.known_urls import KnownImages
from ts_stateful.media.load import MediaFile
from ts_stateful.protocol.defects import defect
from ts_stateful.protocol.errors import StatefulError
from ts_stateful.protocol.requests import Media

__all__ = ["Loaded", "MediaFiles", "ReadImage", "TurnMedia"]

Loaded = list[MediaInput] | StatefulError
ReadImage = Callable[[MediaFile], MediaInput]


class MediaFiles(Protocol):
    """The source of image files; see `media.load.MediaLoader`."""

    def load(
        self,
        images: Sequence[Media],
        attachments: Sequence[bytes],
        read: ReadImage,
        client: Hashable,
        /,
    ) -> Future[list[MediaInput]]:
        """Begin to load files; the future has what `read` makes of each."""
        ...


class TurnMedia:
    """Loads images; results arrive through the engine's queue."""

    def __init__(self, files: MediaFiles, queue: WorkQueue) -> None:
        self._files = files
        self._queue = queue

    def load(
        self,
        images: Sequence[Media],
        attachments: Sequence[bytes],
        *,
        client: Hashable,
        known: Mapping[str, MediaInput],
        read: ReadImage,
        then: Callable[[Loaded], None],
    ) -> None:
        """Begin to load `images`, but those whose URL is `known`, and `attachments`; pass them or the error to `then`.

        `client` is the principal that the fetches are counted for, None for an anonymous one.
        """
        shown = KnownImages(images, known)

        def loaded(done: Future[list[MediaInput]]) -> None:
            self._queue.put(partial(then, _outcome(shown, done)))

        self._files.load(shown.unknown, attachments, read, client).add_done_callback(loaded)


def _outcome(shown: KnownImages, done: Future[list[MediaInput]]) -> Loaded:
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
