"""Images and clips that a client sends again with every request: a session loads each URL once.

While a session shows an image, its URL means the same picture, even if the server is unavailable. Images in `data:` URLs are
part of the request, and are recognized by their pixels.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from ts_stateful.language.encoders.encoder import MediaInput
from ts_stateful.protocol.errors import StatefulError
from ts_stateful.protocol.requests import Media

__all__ = ["KnownImages", "urls_of"]

_FIELD = re.compile(r"(images|audio)\[(\d+)\]")


class KnownImages:
    """The images of a request, of which those with a `known` URL are not loaded."""

    def __init__(self, images: Sequence[Media], known: Mapping[str, MediaInput]) -> None:
        self._found = [known.get(image.url or "") for image in images]
        self._indexes = [at for at, found in enumerate(self._found) if found is None]
        self.unknown = [images[at] for at in self._indexes]

    def merge(self, loaded: Sequence[MediaInput]) -> list[MediaInput]:
        """Return all images in their order, given those that were `unknown`. Additional ones come last."""
        rest = iter(loaded)
        return [*(found or next(rest) for found in self._found), *rest]

    def renumber(self, error: StatefulError) -> StatefulError:
        """Return the error of loading the unknown images; its field gets the index among all of them."""
        named = _FIELD.match(error.field or "")
        if named is not None:
            error.field = (
                f"{named[1]}[{self._indexes[int(named[2])]}]{(error.field or '')[named.end() :]}"
            )
        return error


def urls_of(images: Sequence[Media], made: Sequence[MediaInput]) -> dict[str, MediaInput]:
    """Return the images that were fetched from a server, by their URLs."""
    pairs = zip(images, made, strict=False)
    return {
        image.url: seen
        for image, seen in pairs
        if image.url is not None and image.url[:5].lower() != "data:"
    }
