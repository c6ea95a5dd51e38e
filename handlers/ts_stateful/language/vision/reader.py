"""From files to the images of sessions, each of which is there once.

Owns how an image is recognized: by its file if that has been seen before, or else by its pixels. Knows nothing of requests,
nor of how long an image is kept. Works on media threads.
"""

from __future__ import annotations

import threading
from typing import Any
from weakref import WeakValueDictionary

from ts_stateful.language.vision.encoder import ImageInput, Vision
from ts_stateful.media import ImageFile, file_digest
from ts_stateful.sessions.shared import SharedCache

__all__ = ["ImageReader"]


class ImageReader:
    """Reads images for one model; `shared` has those that are known already."""

    def __init__(self, vision: Vision, shared: SharedCache[Any]) -> None:
        self._vision = vision
        self._shared = shared
        self._lock = threading.Lock()
        # The same images by the files that they came from: a photo takes much longer to decode than to recognize.
        self._by_file: WeakValueDictionary[str, ImageInput] = WeakValueDictionary()

    def read(self, file: ImageFile, tenant: object = None) -> ImageInput:
        """The image in a file: the same object for every session of a tenant that shows the same pixels. For any thread.

        Tenants share nothing, or the time that an image takes would tell one what another has shown.

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
        """Counts a use of an image."""
        image: ImageInput = self._shared.get(known.key, lambda: known)
        return image
