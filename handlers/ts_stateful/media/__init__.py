"""Images from clients: fetched, decoded and bounded, with nothing of their origin trusted."""

from __future__ import annotations

from ts_stateful.media.decode import decode_image
from ts_stateful.media.digest import content_digest, file_digest
from ts_stateful.media.fetch import Fetcher
from ts_stateful.media.load import ImageFile, MediaLoader, UploadedImage

__all__ = [
    "Fetcher",
    "ImageFile",
    "MediaLoader",
    "UploadedImage",
    "content_digest",
    "decode_image",
    "file_digest",
]
