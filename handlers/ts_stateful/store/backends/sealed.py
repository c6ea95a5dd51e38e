"""A store whose values nobody can read or change who has not the key.

Owns the form of a sealed value and the keys. Knows nothing of the values or of what is behind the store.

AES-256-GCM. A sealed value is `TSE1`, 4 bytes that name the key (the beginning of its SHA-256), a nonce of 12 random bytes, and
the ciphertext with its tag of 16. What comes before the ciphertext and the store's key are authenticated with it, so that a
value can neither be changed nor put in the place of another one. Names stay readable: session ids, and digests of images.
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
    """The keys in an environment variable, in base64 between commas; the first one seals, all of them open.

    Raises:
        ConfigError: it is not set, or has something else in it.
    """
    texts = [text.strip() for text in environ.get(variable, "").split(",") if text.strip()]
    try:
        keys = [base64.b64decode(text, validate=True) for text in texts]
    except ValueError:
        keys = []
    if not keys or any(len(key) != _KEY_BYTES for key in keys):
        raise ConfigError(
            f"handler.store.encryptionKeyEnv: {variable} must hold a key of 32 bytes in base64 (openssl rand -base64 32), "
            f"or several between commas, of which the first is used and the others are read with"
        )
    return keys


class SealedStore:
    """What is behind it gets sealed values only. `keys` are of 32 bytes each; the first one seals, all of them open."""

    def __init__(self, store: Store, keys: Sequence[bytes]) -> None:
        self._store = store
        self._ciphers = {_name(key): AESGCM(key) for key in keys}
        self._own = _name(keys[0])

    def create(self, key: str, data: bytes, ttl_s: float | None = None) -> bool:
        """Seals and writes a value if there is none under that key."""
        head = _MAGIC + self._own + os.urandom(_NONCE_BYTES)
        nonce = head[-_NONCE_BYTES:]
        sealed = head + self._ciphers[self._own].encrypt(nonce, data, head + key.encode())
        return self._store.create(key, sealed, ttl_s)

    def get(self, key: str) -> bytes | None:
        """The value, or None if there is none.

        Raises:
            StoreCorrupt: it is not sealed, or by a key that is not here, or was changed or moved.
        """
        return self._opened(key, self._store.get(key))

    def get_many(self, keys: Sequence[str]) -> Sequence[bytes | None]:
        """What `get` gives for each key."""
        values = self._store.get_many(keys)
        return [self._opened(key, sealed) for key, sealed in zip(keys, values, strict=True)]

    def list(self, prefix: str) -> Sequence[str]:
        """The keys below `prefix`, in order."""
        return self._store.list(prefix)

    def delete(self, prefix: str) -> None:
        """Removes the value at `prefix` and all below it."""
        self._store.delete(prefix)

    def sweep(self) -> None:
        """Removes what its life is over of."""
        self._store.sweep()

    def close(self) -> None:
        """Gives back connections."""
        self._store.close()

    def _opened(self, key: str, sealed: bytes | None) -> bytes | None:
        if sealed is None:
            return None
        head = sealed[:_HEAD_BYTES]
        if len(head) < _HEAD_BYTES or not head.startswith(_MAGIC):
            raise StoreCorrupt(
                "a value is not encrypted",
                "it was written without a key, or by somebody else; remove it",
            )
        cipher = self._ciphers.get(head[len(_MAGIC) : -_NONCE_BYTES])
        if cipher is None:
            raise StoreCorrupt(
                "a value is encrypted with a key that this server does not have",
                "add the old key behind the new one in the variable that handler.store.encryptionKeyEnv names",
            )
        try:
            return cipher.decrypt(head[-_NONCE_BYTES:], sealed[_HEAD_BYTES:], head + key.encode())
        except InvalidTag:
            raise StoreCorrupt(
                "an encrypted value was changed, cut short or moved",
                "remove it, and look at the disk or who else writes there",
            ) from None


def _name(key: bytes) -> bytes:
    return hashlib.sha256(key).digest()[:_NAME_BYTES]
