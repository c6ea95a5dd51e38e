"""Images and clips of sessions from files: each of them exists once."""

from __future__ import annotations

import threading
from typing import Any
from weakref import WeakValueDictionary

from ts_stateful.language.encoders.encoder import Encoder, MediaInput
from ts_stateful.media.digest import file_digest
from ts_stateful.media.load import MediaFile
from ts_stateful.sessions.shared import SharedCache

__all__ = ["MediaReader"]


class MediaReader:
    """Reads images or clips for one model; `shared` holds the known ones. Works on media threads.

    They are recognized by their file if that is known, or else by their pixels or samples.
    """

    def __init__(self, encoder: Encoder[Any], shared: SharedCache[Any]) -> None:
        self._encoder = encoder
        self._shared = shared
        self._lock = threading.Lock()
        # The same images by their files: decoding a photo takes much longer than recognizing its file.
        self._by_file: WeakValueDictionary[str, MediaInput] = WeakValueDictionary()

    def read(self, file: MediaFile, tenant: object = None) -> MediaInput:
        """Return the image of a file: one object for all sessions of a tenant with the same content. For any thread.

        Tenants share nothing, because the time of reading would reveal images of another tenant.

        Raises:
            MediaError: the file cannot be decoded.
        """
        salts = () if tenant is None else (repr(tenant),)
        name = file_digest(file.data, "audio" if file.is_audio else "image", *salts)
        with self._lock:
            known = self._by_file.get(name)
        image: MediaInput
        if known is not None:  # this counts as a use
            image = self._shared.get(known.key, lambda: known)
        else:
            decoded = self._encoder.decode(file)
            key = self._encoder.key(decoded, *salts)
            image = self._shared.get(key, lambda: self._encoder.prepare(decoded, key))
        with self._lock:
            self._by_file[name] = image
        return image
