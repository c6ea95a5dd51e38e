"""Messages between an engine and a decoder over their socket.

A decoder sends `Reply(OK, is_confined, 0)` when it is ready. For each file, the engine sends the number of bytes with what it
wants of a clip of audio (`HEAD`, all zero for an image) and the bytes. The decoder replies with the size by the header: width
and height of an image, number of samples and 1 of a clip. After `GO` it decodes, and replies with the size and the pixels,
three bytes each, or the samples, `float32` in the machine's order. A reply other than OK ends the file. The decoder is not
trusted: the engine checks all it reads.
"""

from __future__ import annotations

import enum
import struct
from typing import Any, NamedTuple

import numpy as np

__all__ = [
    "AUDIO_FORMATS",
    "BYTES_PER_PIXEL",
    "FORMATS",
    "GO",
    "HEAD",
    "IMAGE",
    "REPLY_BYTES",
    "Audible",
    "Reply",
    "Samples",
    "Status",
    "Unfit",
]

FORMATS = ("PNG", "JPEG", "WEBP", "GIF", "BMP")
"""The accepted formats. TIFF is not: its tiles can be larger than its image, so its pixels do not bound its memory."""
AUDIO_FORMATS = ("WAV", "FLAC")
HEAD = struct.Struct("!QIdd")
GO = b"\x01"
BYTES_PER_PIXEL = 3
_REPLY = struct.Struct("!BII")
REPLY_BYTES = _REPLY.size


Samples = np.ndarray[Any, np.dtype[np.float32]]
"""A clip of audio: one channel, between -1 and 1."""


class Audible(NamedTuple):
    """The needs of a model: samples a second, and the bounds of a clip's length."""

    rate: int = 0  # 0: it is an image
    min_seconds: float = 0.0
    max_seconds: float = 0.0


IMAGE = Audible()
"""What is wanted of an image."""


class Status(enum.IntEnum):
    """The outcome of a step of decoding."""

    OK = 0
    DAMAGED = 1
    TOO_MANY_PIXELS = 2
    NO_MEMORY = 3
    TOO_LONG = 4
    TOO_SHORT = 5


class Unfit(ValueError):
    """A file that is not decoded, for a reason that its header shows."""

    def __init__(self, status: Status) -> None:
        super().__init__(status.name)
        self.status = status


class Reply(NamedTuple):
    """A decoder's reply: width and height in pixels, or a number of samples and 1."""

    status: Status
    width: int = 0
    height: int = 0

    def to_bytes(self) -> bytes:
        """Return the reply as it is sent."""
        return _REPLY.pack(*self)

    @classmethod
    def from_bytes(cls, data: bytes | bytearray) -> Reply:
        """Read a reply. Raises ValueError if its status is unknown."""
        status, width, height = _REPLY.unpack(data)
        return cls(Status(status), width, height)
