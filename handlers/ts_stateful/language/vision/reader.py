"""Images of sessions from files: each image exists once."""

from __future__ import annotations

import threading
from typing import Any
from weakref import WeakValueDictionary

from ts_stateful.language.vision.encoder import ImageInput, Vision
from ts_stateful.media.digest import file_digest
from ts_stateful.media.load import ImageFile
from ts_stateful.sessions.shared import SharedCache

__all__ = ["ImageReader"]


class ImageReader:
    """Reads images for one model; `shared` holds the known ones. Works on media threads.

    An image is recognized by its file if that is known, or else by its pixels.
    """

    def __init__(self, vision: Vision, shared: SharedCache[Any]) -> None:
        self._vision = vision
        self._shared = shared
        self._lock = threading.Lock()
        # The same images by their files: decoding a photo takes much longer than recognizing its file.
        self._by_file: WeakValueDictionary[str, ImageInput] = WeakValueDictionary()

    def read(self, file: ImageFile, tenant: object = None) -> ImageInput:
        """Return the image of a file: one object for all sessions of a tenant that show the same pixels. For any thread.

        Tenants share nothing, because the time of reading would reveal images of another tenant.

        Raises:
            MediaError: the file cannot be decoded.
        """
        salts = () if tenant is None else (repr(tenant),)
        name = file_digest(file.data, *salts)
        with self._lock:
            known = self._by_file.get(name)
        image = self._decoded(file, salts) if known is None else self._again(known)
        with self._lock:
            self._by_file[name] = image
        return image

    def _decoded(self, file: ImageFile, salts: tuple[str, ...]) -> ImageInput:
        picture = file.decode()
        key = self._vision.key(picture, *salts)
        image: ImageInput = self._shared.get(key, lambda: self._vision.prepare(picture, key))
        return image

    def _again(self, known: ImageInput) -> ImageInput:
        """Count a use of an image."""
        image: ImageInput = self._shared.get(known.key, lambda: known)
        return image
