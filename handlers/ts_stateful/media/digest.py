"""Digests of the content of images, as keys of caches. Names that clients or files give do not count."""

from __future__ import annotations

import hashlib

from PIL import Image

__all__ = ["content_digest", "file_digest"]

_PART_PIXELS = 300_000


def content_digest(image: Image.Image, *salts: str) -> str:
    """Return SHA-256 in hex of the pixels of `image` with their mode, size and palette, and of `salts`.

    The salts name the user and the program of the cached result (tenant, processor, model revision). Different lists of salts
    give different digests, also if their texts join to the same one.
    """
    digest = _salted(image.mode, str(image.width), str(image.height), *salts)
    digest.update(bytes(image.getpalette("RGBA") or ()) if image.mode in ("P", "PA") else b"")
    # In parts, as all pixels at once would take their memory twice. Rows are whole bytes in every mode.
    num_rows = max(1, _PART_PIXELS // max(1, image.width))
    for top in range(0, image.height, num_rows):
        bottom = min(image.height, top + num_rows)
        digest.update(image.crop((0, top, image.width, bottom)).tobytes())
    return digest.hexdigest()


def file_digest(data: bytes, *salts: str) -> str:
    """Return SHA-256 in hex of the bytes of a file and of `salts`; see `content_digest`.

    It takes a small part of the time of decoding the file. Other files may have the same pixels.
    """
    digest = _salted(*salts)
    digest.update(data)
    return digest.hexdigest()


def _salted(*salts: str) -> hashlib._Hash:
    """Hash the number of salts, their lengths and their texts: no other list starts with the same bytes."""
    digest = hashlib.sha256(len(salts).to_bytes(8, "big"))
    for salt in salts:
        encoded = salt.encode()
        digest.update(len(encoded).to_bytes(8, "big") + encoded)
    return digest
