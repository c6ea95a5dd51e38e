"""Images and clips of requests: paths, URLs and bytes as the protocol's documents. The server decodes them."""

from __future__ import annotations

import base64
import os
from collections.abc import Iterable
from pathlib import Path
from typing import TypeVar

import msgspec

from ts_stateful.client.errors import RequestTooLarge
from ts_stateful.protocol.requests import Audio, Image, Media, Open, Prompt

__all__ = ["ImageSource", "wire_audio", "wire_images", "with_media"]

_MAX_FILE_BYTES = 1_000_000_000  # a server's default limit is 20,000,000

ImageSource = str | os.PathLike[str] | bytes | bytearray | memoryview
"""A path, a URL (`https:`, `http:`, `data:` or `s3:`), or the bytes of a file."""
MediaT = TypeVar("MediaT", bound=Media)
CommandT = TypeVar("CommandT", Open, Prompt)


def wire_images(sources: Iterable[ImageSource]) -> tuple[Image, ...]:
    """Convert images to the form that requests carry; the server fetches a URL.

    Raises:
        OSError: a file cannot be read.
        RequestTooLarge: a file is larger than any server takes.
        TypeError: `sources` is one file and not a list.
    """
    return _wire(sources, Image, "images")


def wire_audio(sources: Iterable[ImageSource]) -> tuple[Audio, ...]:
    """Convert clips of audio as `wire_images` does images."""
    return _wire(sources, Audio, "audio")


def with_media(command: CommandT, media: Iterable[Media]) -> CommandT:
    """Return a request with these media instead of its own."""
    files = tuple(media)
    return msgspec.structs.replace(
        command,
        images=tuple(file for file in files if isinstance(file, Image)),
        audio=tuple(file for file in files if isinstance(file, Audio)),
    )


def _wire(sources: Iterable[ImageSource], kind: type[MediaT], name: str) -> tuple[MediaT, ...]:
    if isinstance(sources, str | bytes | bytearray | memoryview | os.PathLike):
        raise TypeError(f"`{name}` must be a list, not one file: write {name}=[...]")
    return tuple(_wire_one(source, kind) for source in sources)


def _wire_one(source: ImageSource, kind: type[MediaT]) -> MediaT:
    if isinstance(source, bytes | bytearray | memoryview):
        return kind(base64=base64.b64encode(source).decode("ascii"))
    if isinstance(source, str) and ("://" in source or source.startswith("data:")):
        return kind(url=source)
    path = Path(source)
    # Before reading: the file may be of any size.
    if path.stat().st_size > _MAX_FILE_BYTES:
        raise RequestTooLarge(
            f"{path.name} has more than {_MAX_FILE_BYTES:,} bytes; make it smaller"
        )
    return kind(base64=base64.b64encode(path.read_bytes()).decode("ascii"))
