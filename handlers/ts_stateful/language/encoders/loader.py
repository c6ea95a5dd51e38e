"""Images and clips of turns, loaded on threads of their own; each of them exists once."""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Hashable, Mapping, Sequence
from concurrent.futures import Future
from typing import Any, Protocol
from weakref import WeakValueDictionary

from ts_stateful.language.encoders.encoder import Encoder, MediaInput
from ts_stateful.media.digest import file_digest
from ts_stateful.media.load import MediaFile, named
from ts_stateful.protocol.defects import defect
from ts_stateful.protocol.errors import StatefulError
from ts_stateful.protocol.requests import Media
from ts_stateful.sessions.shared import SharedCache

__all__ = ["KnownImages", "Loaded", "MediaFiles", "MediaReader", "ReadImage", "urls_of"]

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


class MediaReader:
    """Reads images or clips for one model; `shared` holds the known ones. Works on media threads.

    They are recognized by their file if that is known, or else by their pixels or samples.
    """

    def __init__(self, encoder: Encoder[Any], shared: SharedCache[Any]) -> None:
        self._encoder = encoder
        self._shared = shared
        self._lock = threading.Lock()
        # The same images by their files: decoding a photo takes much longer than recognizing its file.
        self._by_file: WeakValueDictionary[str, MediaInput] = WeakValueDictionary()

    def read(self, file: MediaFile, tenant: object = None) -> MediaInput:
        """Return the image of a file: one object for all sessions of a tenant with the same content. For any thread.

        Tenants share nothing, because the time of reading would reveal images of another tenant.

        Raises:
            MediaError: the file cannot be decoded.
        """
        salts = () if tenant is None else (repr(tenant),)
        name = file_digest(file.data, "audio" if file.is_audio else "image", *salts)
        with self._lock:
            known = self._by_file.get(name)
        image: MediaInput
        if known is not None:  # this counts as a use
            image = self._shared.get(known.key, lambda: known)
        else:
            decoded = self._encoder.decode(file)
            key = self._encoder.key(decoded, *salts)
            image = self._shared.get(key, lambda: self._encoder.prepare(decoded, key))
        with self._lock:
            self._by_file[name] = image
        return image
