"""Images and clips of requests: paths, URLs and bytes as the protocol's documents, which the server decodes.

Those that are too large for a request are uploaded in parts before the prompt that refers to them.
"""

from __future__ import annotations

import base64
import hashlib
import os
import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TypeVar

import msgspec

from ts_stateful.client.calls import Calls
from ts_stateful.client.documents import encode
from ts_stateful.client.errors import ProtocolError, RequestTooLarge
from ts_stateful.client.retry import Attempts
from ts_stateful.protocol.answers import Uploaded
from ts_stateful.protocol.errors import InvalidRequest
from ts_stateful.protocol.requests import Audio, Image, Media, Open, Prompt, Upload

__all__ = ["ImageSource", "ImageUploads", "fits", "wire_audio", "wire_images", "with_media"]

# A transport's overhead for a document, and an `upload`'s for its part.
_ENVELOPE_BYTES = 1024
# Smaller than most servers' limit: while an engine reads a part, it generates nothing for any session.
_MAX_PART_CHARS = 1_000_000
_MAX_ROUNDS = 5
_FIELD = re.compile(r"(images|audio)\[\d+\]\.upload")
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


def fits(command: Open | Prompt, max_body_bytes: int) -> bool:
    """Return True if a request can be sent in one piece; a request without files always is."""
    files = sum(len(image.base64 or "") for image in command.media)
    return not files or len(encode(command)) + _ENVELOPE_BYTES <= max_body_bytes


class ImageUploads:
    """The uploads of one session. `first` are the files that its `open` could not carry: turn 1 has them."""

    def __init__(self, calls: Calls, first: Sequence[Media] = ()) -> None:
        self.first = tuple(first)
        self._calls = calls
        self._complete: set[tuple[str, str]] = set()  # session ids and hashes

    def carried(self, prompt: Prompt, attempts: Attempts) -> Prompt:
        """Return a numbered prompt in the form in which it can be sent, after the uploads that this needs.

        Raises:
            StatefulError: the server refuses an upload, for instance by `MediaTooLarge`.
            ClientError: there was no answer.
        """
        if prompt.turn == 1 and self.first:
            prompt = with_media(prompt, (*self.first, *prompt.media))
        if fits(prompt, self._calls.transport.max_body_bytes):
            return prompt
        return with_media(prompt, [self._uploaded(prompt, each, attempts) for each in prompt.media])

    def lost(self, error: Exception) -> bool:
        """Return True if a prompt failed because the server dropped an upload; `carried` then uploads again."""
        if not self._complete or not isinstance(error, InvalidRequest):
            return False
        if not _FIELD.fullmatch(error.field or ""):
            return False
        self._complete.clear()
        return True

    def _uploaded(self, prompt: Prompt, image: Media, attempts: Attempts) -> Media:
        if (text := image.base64) is None:
            return image
        # Parts are cut from the text: four characters are always three bytes.
        room = self._calls.transport.max_body_bytes - _ENVELOPE_BYTES
        size = max(4, min(room, _MAX_PART_CHARS) // 4 * 4)
        sha256 = hashlib.sha256(base64.b64decode(text)).hexdigest()
        key = (str(prompt.session_id), sha256)
        missing: Sequence[int] = range(-(-len(text) // size)) if key not in self._complete else ()
        whole = Upload(session_id=prompt.session_id, sha256=sha256, parts=max(1, len(missing)))
        for _ in range(_MAX_ROUNDS):
            for number in missing:
                piece = text[number * size : (number + 1) * size]
                part = msgspec.structs.replace(whole, part=number, base64=piece)
                answer = self._calls.call(part, Uploaded, attempts.deadline.remaining_s())
                missing = answer.missing
                if answer.complete:
                    break
            if not missing:
                self._complete.add(key)
                return type(image)(upload=sha256)
        raise ProtocolError(
            f"the server lost parts of an image in {_MAX_ROUNDS} uploads; send a smaller image"
        )
