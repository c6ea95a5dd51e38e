"""Names for the content of images, under which results that were computed from them can be cached.

Owns what makes two images the same: their pixels; files of the same bytes have the same ones. Names that clients or files give
count for nothing.
"""

from __future__ import annotations

import hashlib

from PIL import Image

__all__ = ["content_digest", "file_digest"]


def content_digest(image: Image.Image, *salts: str) -> str:
    """SHA-256 in hex of the pixels of `image` with their mode, size and palette, and of `salts`.

    It names the content, for caches of what is computed from it; the salts say for whom and by what
    (tenant, processor, model revision). Different lists of salts give different digests however
    their texts would join.
    """
    digest = _salted(image.mode, str(image.width), str(image.height), *salts)
    digest.update(bytes(image.getpalette("RGBA") or ()) if image.mode in ("P", "PA") else b"")
    digest.update(image.tobytes())
    return digest.hexdigest()


def file_digest(data: bytes, *salts: str) -> str:
    """SHA-256 in hex of the bytes of a file and of `salts`, which separate digests as they do above.

    It takes a small part of the time of decoding the file. Other files may have the same pixels.
    """
    digest = _salted(*salts)
    digest.update(data)
    return digest.hexdigest()


def _salted(*salts: str) -> hashlib._Hash:
    """A hash of how many salts there are, how long each is, and their texts: no other list starts like that."""
    digest = hashlib.sha256(len(salts).to_bytes(8, "big"))
    for salt in salts:
        encoded = salt.encode()
        digest.update(len(encoded).to_bytes(8, "big") + encoded)
    return digest
