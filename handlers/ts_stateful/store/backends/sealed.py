"""A store that encrypts its values with AES-256-GCM.

A sealed value is `TSE1`, 4 bytes that name the key (the beginning of its SHA-256), a nonce of 12 random bytes, and the
ciphertext with its tag of 16. The tag covers these first bytes and the store's key too, so a value can be neither changed
nor moved. Names stay readable: session ids, and digests of images.
"""

from __future__ import annotations

import base64
import hashlib
import os
from collections.abc import Mapping, Sequence

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from ts_stateful.config.schema import ConfigError
from ts_stateful.store.base import Store, StoreCorrupt

__all__ = ["SealedStore", "read_keys"]

_MAGIC = b"TSE1"
_KEY_BYTES = 32
_NAME_BYTES = 4
_NONCE_BYTES = 12
_HEAD_BYTES = len(_MAGIC) + _NAME_BYTES + _NONCE_BYTES


def read_keys(variable: str, environ: Mapping[str, str] = os.environ) -> Sequence[bytes]:
    """Read keys of 32 bytes from an environment variable, in base64 between commas.

    Raises:
        ConfigError: it is not set, or holds anything else.
    """
    texts = [text.strip() for text in environ.get(variable, "").split(",") if text.strip()]
    try:
        keys = [base64.b64decode(text, validate=True) for text in texts]
    except ValueError:
        keys = []
    if not keys or any(len(key) != _KEY_BYTES for key in keys):
        raise ConfigError(
            f"handler.store.encryptionKeyEnv: {variable} must hold a key of 32 bytes in base64 (openssl rand -base64 32), "
            f"or several between commas: the first encrypts, all decrypt"
        )
    return keys


class SealedStore:
    """A store that gives sealed values only to the inner one. The first of `keys` seals, all of them open."""

    def __init__(self, store: Store, keys: Sequence[bytes]) -> None:
        self._store = store
        self._ciphers = {_name(key): AESGCM(key) for key in keys}
        self._own = _name(keys[0])
        # What reads and writes no value.
        self.list, self.delete, self.delete_keys = store.list, store.delete, store.delete_keys
        self.sweep, self.capacity, self.close = store.sweep, store.capacity, store.close

    def create(self, key: str, data: bytes, ttl_s: float | None = None) -> bool:
        """See `Store`."""
        head = _MAGIC + self._own + os.urandom(_NONCE_BYTES)
        nonce = head[-_NONCE_BYTES:]
        sealed = head + self._ciphers[self._own].encrypt(nonce, data, head + key.encode())
        return self._store.create(key, sealed, ttl_s)

    def get(self, key: str) -> bytes | None:
        """See `Store`.

        Raises:
            StoreCorrupt: the value is not sealed, its key is missing, or it was changed or moved.
        """
        return self._opened(key, self._store.get(key))

    def get_many(self, keys: Sequence[str]) -> Sequence[bytes | None]:
        """See `get`."""
        values = self._store.get_many(keys)
        return [self._opened(key, sealed) for key, sealed in zip(keys, values, strict=True)]

    def remove(self, key: str, data: bytes) -> None:
        """See `get` and `Store`."""
        sealed = self._store.get(key)
        if sealed is not None and self._opened(key, sealed) == data:
            self._store.remove(key, sealed)

    def _opened(self, key: str, sealed: bytes | None) -> bytes | None:
        if sealed is None:
            return None
        head = sealed[:_HEAD_BYTES]
        if len(head) < _HEAD_BYTES or not head.startswith(_MAGIC):
            raise StoreCorrupt(
                "a value is not encrypted",
                "it was written without a key, or by another program; remove it",
            )
        cipher = self._ciphers.get(head[len(_MAGIC) : -_NONCE_BYTES])
        if cipher is None:
            raise StoreCorrupt(
                "a value is encrypted with a key that is missing here",
                "add the old key after the new one in the variable that handler.store.encryptionKeyEnv names",
            )
        try:
            return cipher.decrypt(head[-_NONCE_BYTES:], sealed[_HEAD_BYTES:], head + key.encode())
        except InvalidTag:
            raise StoreCorrupt(
                "an encrypted value was changed, cut short or moved",
                "remove it, and check the disk and other programs that write there",
            ) from None


def _name(key: bytes) -> bytes:
    return hashlib.sha256(key).digest()[:_NAME_BYTES]
