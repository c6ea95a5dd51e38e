"""Hostile inputs."""

from __future__ import annotations

import struct
import zlib

__all__ = ["DEEP", "JSON", "SVG", "bomb", "chunk", "raw_png"]

JSON = {"Content-Type": "application/json"}
SVG = b'<svg xmlns="http://www.w3.org/2000/svg"><rect width="1" height="1"/></svg>'
DEEP = b"[" * 100_000 + b"]" * 100_000


def chunk(name: bytes, data: bytes) -> bytes:
    """Make a chunk of a PNG file."""
    checksum = struct.pack(">I", zlib.crc32(name + data))
    return struct.pack(">I", len(data)) + name + data + checksum


def raw_png(size: tuple[int, int], depth: int, color: int, rows: bytes, *extra: bytes) -> bytes:
    """Make a PNG that Pillow cannot write. `color` is the color type of its header."""
    header = chunk(b"IHDR", struct.pack(">IIBBBBB", *size, depth, color, 0, 0, 0))
    body = chunk(b"IDAT", zlib.compress(rows)) + chunk(b"IEND", b"")
    return b"\x89PNG\r\n\x1a\n" + header + b"".join(extra) + body


def bomb() -> bytes:
    """Make a PNG of a few hundred bytes that claims 50,000 x 50,000 pixels."""
    return raw_png((50_000, 50_000), 8, 2, bytes(1000))
