"""Images of requests: paths, URLs and bytes as the protocol's documents. The server decodes them."""

from __future__ import annotations

import base64
import os
from collections.abc import Iterable
from pathlib import Path

from ts_stateful.client.errors import RequestTooLarge
from ts_stateful.protocol.requests import Image

__all__ = ["ImageSource", "wire_images"]

_MAX_FILE_BYTES = 1_000_000_000  # a server's default limit is 20,000,000

ImageSource = str | os.PathLike[str] | bytes | bytearray | memoryview
"""A path, a URL (`https:`, `http:`, `data:` or `s3:`), or the bytes of an encoded image."""


def wire_images(sources: Iterable[ImageSource]) -> tuple[Image, ...]:
    """Convert images to the form that requests carry; the server fetches a URL.

    Raises:
        OSError: a file cannot be read.
        RequestTooLarge: a file is larger than any server takes.
        TypeError: `sources` is one image and not a list.
    """
    if isinstance(sources, str | bytes | bytearray | memoryview | os.PathLike):
        raise TypeError("`images` must be a list, not one image: write images=[...]")
    return tuple(_wire_image(source) for source in sources)


def _wire_image(source: ImageSource) -> Image:
    if isinstance(source, bytes | bytearray | memoryview):
        return Image(base64=base64.b64encode(source).decode("ascii"))
    if isinstance(source, str) and ("://" in source or source.startswith("data:")):
        return Image(url=source)
    path = Path(source)
    # Before reading: the file may be of any size.
    if path.stat().st_size > _MAX_FILE_BYTES:
        raise RequestTooLarge(
            f"{path.name} has more than {_MAX_FILE_BYTES:,} bytes; make it smaller"
        )
    return Image(base64=base64.b64encode(path.read_bytes()).decode("ascii"))
