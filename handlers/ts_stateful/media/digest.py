"""Names for the content of images, under which results that were computed from them can be cached.

Owns what makes two images the same: their pixels. Names that clients or files give count for nothing.
"""

from __future__ import annotations

import hashlib

from PIL import Image

__all__ = ["content_digest"]


def content_digest(image: Image.Image, *salts: str) -> str:
    """SHA-256 in hex of the pixels of `image` with their mode, size and palette, and of `salts`.

    It names the content, for caches of what is computed from it; the salts say for whom and by what
    (tenant, processor, model revision). Different lists of salts give different digests however
    their texts would join.
    """
    digest = hashlib.sha256()
    for salt in (image.mode, str(image.width), str(image.height), *salts):
        encoded = salt.encode()
        digest.update(len(encoded).to_bytes(8, "big") + encoded)
    digest.update(bytes(image.getpalette("RGBA") or ()) if image.mode in ("P", "PA") else b"")
    digest.update(image.tobytes())
    return digest.hexdigest()
