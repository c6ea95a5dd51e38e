"""Images that a client tells again with every request: those that its session knows are not fetched again.

Owns how they are known: by the URL under which the session was told them, which then means the same picture for as long as the
session shows it, though the server behind it may be gone. Images in `data:` URLs come along anyway and are known by what they
show.
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
    """The images in their order, and behind them whatever else `load` returns, which gets those that are not `known`.

    Raises:
        MediaError: what `load` raises, with the image's place among all of them.
    """
    places = [at for at, image in enumerate(images) if (image.url or "") not in known]
    try:
        loaded = iter(load([images[at] for at in places]))
    except MediaError as error:
        named = _FIELD.match(error.field or "")
        if named is not None:
            error.field = f"images[{places[int(named[1])]}]{(error.field or '')[named.end() :]}"
        raise
    made = [known.get(image.url or "") or next(loaded) for image in images]
    return [*made, *loaded]


def urls_of(images: Sequence[Image], made: Sequence[ImageInput]) -> dict[str, ImageInput]:
    """The images that came from a server, by their URLs."""
    pairs = zip(images, made, strict=False)
    return {
        image.url: seen
        for image, seen in pairs
        if image.url is not None and image.url[:5].lower() != "data:"
    }
