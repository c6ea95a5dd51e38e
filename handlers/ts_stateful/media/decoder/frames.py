"""Messages between an engine and a decoder over their socket.

A decoder sends `Reply(OK, is_confined, 0)` when it is ready. For each image, the engine sends the number of bytes (`LENGTH`)
and the bytes. The decoder replies with the size by the header. After `GO` it decodes, and replies with the size and the
pixels, three bytes each. A reply other than OK ends the image. The decoder is not trusted: the engine checks all it reads.
"""

from __future__ import annotations

import enum
import struct
from typing import NamedTuple

__all__ = [
    "BYTES_PER_PIXEL",
    "FORMATS",
    "GO",
    "LENGTH",
    "REPLY_BYTES",
    "Reply",
    "Status",
]

FORMATS = ("PNG", "JPEG", "WEBP", "GIF", "BMP")
"""The accepted formats. TIFF is not: its tiles can be larger than its image, so its pixels do not bound its memory."""
LENGTH = struct.Struct("!Q")
GO = b"\x01"
BYTES_PER_PIXEL = 3
_REPLY = struct.Struct("!BII")
REPLY_BYTES = _REPLY.size


class Status(enum.IntEnum):
    """The outcome of a step of decoding."""

    OK = 0
    DAMAGED = 1
    TOO_MANY_PIXELS = 2
    NO_MEMORY = 3


class Reply(NamedTuple):
    """A decoder's reply: width and height in pixels."""

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
