"""What an engine keeps for a session of a language model.

Owns the log of token ids, the images and the KV states of one session, and their way down the ladder. Knows nothing of
requests. The log is the session; the KV states are a cache of it that may be shorter, or gone.
"""

from __future__ import annotations

import torch

from ts_stateful.engine.kv import KVCache
from ts_stateful.engine.text import Dialogue
from ts_stateful.engine.vision import ImageInput
from ts_stateful.errors import StatefulError
from ts_stateful.sessions.session import Residency

__all__ = ["Context"]

_HOST = torch.device("cpu")


class Context:
    """The state of one session; implements `sessions.SessionState`."""

    def __init__(self, dialogue: Dialogue, device: torch.device) -> None:
        self.dialogue = dialogue
        self.log: list[int] = []
        self.images: list[ImageInput] = []
        self.kv = KVCache()
        self.failed: tuple[int, StatefulError] | None = None  # the last turn that was rolled back
        self._device = device
        self._kv_on_host = False

    @property
    def residency(self) -> Residency:
        """Where the KV states are."""
        if self.kv.length == 0:
            return Residency.RECORD
        return Residency.HOST if self._kv_on_host else Residency.DEVICE

    @property
    def device_bytes(self) -> int:
        """Bytes of KV states on the device."""
        return 0 if self._kv_on_host else self.kv.num_bytes

    @property
    def host_bytes(self) -> int:
        """Bytes of KV states in host memory."""
        return self.kv.num_bytes if self._kv_on_host else 0

    @property
    def shared(self) -> list[ImageInput]:
        """The images: other sessions may show the same ones."""
        return self.images

    @property
    def image_bytes(self) -> int:
        """Bytes of the embeddings of its images, whoever else uses them."""
        return sum(image.num_bytes for image in set(self.images))

    def to_host(self) -> None:
        """Moves the KV states to host memory; embeddings are small and stay."""
        self.kv.move(_HOST)
        self._kv_on_host = True

    def to_record(self) -> None:
        """Drops the KV states."""
        self.kv = KVCache()
        self._kv_on_host = False

    def to_device(self) -> str | None:
        """Brings back what can be brought back; returns where the context comes from, None for the device itself."""
        if self._kv_on_host:
            self.kv.move(self._device)
            self._kv_on_host = False
            return "host"
        return "replay" if self.log and self.kv.length == 0 else None

    @property
    def _image_bytes(self) -> int:
        return sum(image.num_bytes for image in self.images)
