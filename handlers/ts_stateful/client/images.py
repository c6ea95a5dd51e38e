"""Images on their way out: paths, URLs and bytes as the protocol's documents.

Reads files, decodes nothing: whether bytes are an image is the server's business.
"""

from __future__ import annotations

import base64
import os
from collections.abc import Iterable
from pathlib import Path

from ts_stateful.client.errors import RequestTooLarge
from ts_stateful.protocol.requests import Image

__all__ = ["ImageSource", "wire_images"]

_MAX_FILE_BYTES = 1_000_000_000  # a server takes 20,000,000, unless it is told otherwise

ImageSource = str | os.PathLike[str] | bytes | bytearray | memoryview
"""A path, a URL (`https:`, `http:`, `data:` or `s3:`), or the bytes of an encoded image."""


def wire_images(sources: Iterable[ImageSource]) -> tuple[Image, ...]:
    """The images as requests carry them; a URL is fetched by the server.

    Raises:
        OSError: a file cannot be read.
        RequestTooLarge: a file is larger than any server takes.
    """
    if isinstance(sources, str | bytes | bytearray | memoryview | os.PathLike):
        raise TypeError("`images` is a list: write images=[...]")
    return tuple(_wire_image(source) for source in sources)


def _wire_image(source: ImageSource) -> Image:
    if isinstance(source, bytes | bytearray | memoryview):
        return Image(base64=base64.b64encode(source).decode("ascii"))
    if isinstance(source, str) and ("://" in source or source.startswith("data:")):
        return Image(url=source)
    path = Path(source)
    # Before it is read: the file may be of any size.
    if path.stat().st_size > _MAX_FILE_BYTES:
        raise RequestTooLarge(f"{path.name} has more than {_MAX_FILE_BYTES:,} bytes")
    return Image(base64=base64.b64encode(path.read_bytes()).decode("ascii"))
