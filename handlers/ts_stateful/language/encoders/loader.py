"""Images and clips of turns, loaded on threads of their own."""

from __future__ import annotations

import re
from collections.abc import Callable, Hashable, Mapping, Sequence
from concurrent.futures import Future
from typing import Protocol

from ts_stateful.language.encoders.encoder import MediaInput
from ts_stateful.media.load import MediaFile, named
from ts_stateful.protocol.defects import defect
from ts_stateful.protocol.errors import StatefulError
from ts_stateful.protocol.requests import Media

__all__ = ["KnownImages", "Loaded", "MediaFiles", "ReadImage", "urls_of"]

Loaded = list[MediaInput] | StatefulError
ReadImage = Callable[[MediaFile], MediaInput]
_NAME = re.compile(r"(images|audio)\[\d+\]")


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


class KnownImages:
    """The images of a request, which may have been sent before: those with a `known` URL are not loaded again.

    While a session shows an image, its URL means the same picture, even if the server is unavailable. Images in `data:` URLs
    are part of the request, and are recognized by their pixels.
    """

    def __init__(self, images: Sequence[Media], known: Mapping[str, MediaInput]) -> None:
        self._found = [known.get(image.url or "") for image in images]
        pairs = zip(named(images), self._found, strict=True)
        unknown = [image for image, found in pairs if found is None]
        self.unknown = [image for _, image in unknown]
        names = [name for name, _ in named(self.unknown)]
        self._names = dict(zip(names, [name for name, _ in unknown], strict=True))

    def outcome(self, done: Future[list[MediaInput]]) -> Loaded:
        """Return all images, or the error of loading those that were `unknown`. For the thread that has loaded them."""
        error = done.exception()
        if error is None:
            return self.merge(done.result())
        # The boundary of a media thread: a defect fails its request.
        outcome = (
            self.renumber(error)
            if isinstance(error, StatefulError)
            else defect(error, "loading images")
        )
        error.__traceback__ = None  # its frames would hold the session
        return outcome

    def merge(self, loaded: Sequence[MediaInput]) -> list[MediaInput]:
        """Return all images in their order, given those that were `unknown`. Additional ones come last."""
        rest = iter(loaded)
        return [*(found or next(rest) for found in self._found), *rest]

    def renumber(self, error: StatefulError) -> StatefulError:
        """Return the error of loading the unknown images; its field gets the index among all of them."""
        name = _NAME.match(error.field or "")
        if error.field is not None and name is not None:
            error.field = self._names[name[0]] + error.field[name.end() :]
        return error


def urls_of(images: Sequence[Media], made: Sequence[MediaInput]) -> dict[str, MediaInput]:
    """Return the images that were fetched from a server, by their URLs."""
    pairs = zip(images, made, strict=False)
    return {
        image.url: seen
        for image, seen in pairs
        if image.url is not None and image.url[:5].lower() != "data:"
    }
