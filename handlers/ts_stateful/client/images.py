"""Images on their way out: paths, URLs and bytes as the protocol's documents.

Reads files, decodes nothing: whether bytes are an image is the server's business.
"""

from __future__ import annotations

import base64
import os
from collections.abc import Iterable
from pathlib import Path

from ts_stateful.client.documents import check_size
from ts_stateful.protocol import Image

__all__ = ["ImageSource", "wire_images"]

ImageSource = str | os.PathLike[str] | bytes | bytearray | memoryview
"""A path, a URL (`https:`, `http:` or `data:`), or the bytes of an encoded image."""


def wire_images(sources: Iterable[ImageSource], max_bytes: int) -> tuple[Image, ...]:
    """The images as requests carry them; a URL is fetched by the server.

    Raises:
        OSError: a file cannot be read.
        RequestTooLarge: an image alone is larger than a request may be.
    """
    if isinstance(sources, str | bytes | bytearray | memoryview | os.PathLike):
        raise TypeError("`images` is a list: write images=[...]")
    return tuple(_wire_image(source, max_bytes) for source in sources)


def _wire_image(source: ImageSource, max_bytes: int) -> Image:
    if isinstance(source, bytes | bytearray | memoryview):
        check_size(_base64_length(len(source)), max_bytes)
        return Image(base64=base64.b64encode(source).decode("ascii"))
    if isinstance(source, str) and ("://" in source or source.startswith("data:")):
        return Image(url=source)
    path = Path(source)
    # Before it is read: the file may be of any size.
    check_size(_base64_length(path.stat().st_size), max_bytes)
    return Image(base64=base64.b64encode(path.read_bytes()).decode("ascii"))


def _base64_length(num_bytes: int) -> int:
    return (num_bytes + 2) // 3 * 4
