"""Images that a client sends again with every request: a session loads each URL once.

While a session shows an image, its URL means the same picture, even if the server is unavailable. Images in `data:` URLs are
part of the request, and are recognized by their pixels.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence

from ts_stateful.language.vision.encoder import ImageInput
from ts_stateful.protocol.errors import MediaError
from ts_stateful.protocol.requests import Image

__all__ = ["load_unknown", "urls_of"]

_FIELD = re.compile(r"images\[(\d+)\]")


def load_unknown(
    images: Sequence[Image],
    known: Mapping[str, ImageInput],
    load: Callable[[Sequence[Image]], list[ImageInput]],
) -> list[ImageInput]:
    """Return the images in their order; `load` loads those that are not `known`.

    Additional images that `load` returns come last.

    Raises:
        MediaError: raised by `load`; its field has the image's index among all of them.
    """
    indexes = [at for at, image in enumerate(images) if (image.url or "") not in known]
    try:
        loaded = iter(load([images[at] for at in indexes]))
    except MediaError as error:
        named = _FIELD.match(error.field or "")
        if named is not None:
            error.field = f"images[{indexes[int(named[1])]}]{(error.field or '')[named.end() :]}"
        raise
    made = [known.get(image.url or "") or next(loaded) for image in images]
    return [*made, *loaded]


def urls_of(images: Sequence[Image], made: Sequence[ImageInput]) -> dict[str, ImageInput]:
    """Return the images that were fetched from a server, by their URLs."""
    pairs = zip(images, made, strict=False)
    return {
        image.url: seen
        for image, seen in pairs
        if image.url is not None and image.url[:5].lower() != "data:"
    }
