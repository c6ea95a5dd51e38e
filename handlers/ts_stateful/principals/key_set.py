"""The keys of an issuer, read again by a thread of its own, so that no request waits for them."""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator
from typing import Any, NamedTuple

import jwt
import msgspec

from ts_stateful.clock import SYSTEM_CLOCK, Clock
from ts_stateful.principals.key_sources import KeySource, KeysUnreadable
from ts_stateful.protocol.errors import KeysUnavailable, Unauthenticated

__all__ = ["ALGORITHMS", "KeySet", "read_keys"]

logger = logging.getLogger(__name__)

ALGORITHMS = (
    *("RS256", "RS384", "RS512", "PS256", "PS384", "PS512"),
    *("ES256", "ES384", "ES512", "EdDSA"),
)
"""Signatures that only the issuer can make. A key shared with it (HS256), or no signature (`none`), is never accepted."""

_PAUSE_S = 10.0  # between two readings, so that unknown keys in tokens cause few of them
_MIN_RSA_BITS = 2048


class _Keys(NamedTuple):
    """Keys by their ids, and the number of changes before them."""

    by_id: dict[str | None, jwt.PyJWK]
    version: int = 0


class KeySet:
    """The current keys of a source."""

    def __init__(self, source: KeySource, refresh_s: float, clock: Clock = SYSTEM_CLOCK) -> None:
        self._source = source
        self._refresh_s = refresh_s
        self._clock = clock
        self._wanted = threading.Event()
        self._keys = _Keys({})

    @property
    def version(self) -> int:
        """The number of times that the keys have changed."""
        return self._keys.version

    def start(self) -> None:
        """Read the keys once, and from now on again and again."""
        self.refresh()
        threading.Thread(target=self._run, name="key-set", daemon=True).start()

    def refresh(self) -> None:
        """Read the keys; keep the present ones if that fails. May wait."""
        try:
            made = read_keys(self._source.read())
        except KeysUnreadable as error:
            logger.error("handler.auth.jwks: %s; the keys read before stay in use", error)
            return
        if _documents(made) != _documents(self._keys.by_id):
            self._keys = _Keys(made, self._keys.version + 1)
            logger.info("handler.auth.jwks: %d keys", len(made))

    def find(self, key_id: str | None) -> jwt.PyJWK:
        """Return the key of that id, or the only key for a token that names none. Never waits.

        Raises:
            KeysUnavailable: no key could be read yet.
            Unauthenticated: there is no such key; the keys are then read again soon.
        """
        keys = self._keys.by_id
        if not keys:
            self._wanted.set()
            raise KeysUnavailable(
                "the issuer's keys could not be read yet; try again later", retry_after_s=_PAUSE_S
            )
        if key_id is None and len(keys) == 1:
            return next(iter(keys.values()))
        if key_id not in keys:
            self._wanted.set()
            raise Unauthenticated("the token's key is not one of the issuer's; get a new token")
        return keys[key_id]

    def _run(self) -> None:
        while True:
            self._wanted.wait(self._refresh_s if self._keys.by_id else _PAUSE_S)
            self._wanted.clear()
            try:
                self.refresh()
            except Exception:  # the boundary of the thread: it has to know later keys
                logger.exception("handler.auth.jwks: the keys cannot be read")
            self._clock.sleep(_PAUSE_S)


def read_keys(data: bytes) -> dict[str | None, jwt.PyJWK]:
    """Return the usable keys of a key set, by their ids.

    Raises:
        KeysUnreadable: it is not a key set, or has no usable key.
    """
    try:
        documents = msgspec.json.decode(data, type=dict[str, Any]).get("keys")
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        raise KeysUnreadable("not a JSON object") from None
    if not isinstance(documents, list):
        raise KeysUnreadable("the document has no list `keys`")
    keys = {key.key_id: key for key in _usable(documents)}
    if not keys:
        raise KeysUnreadable(f"no public key for signatures of {', '.join(ALGORITHMS)}")
    return keys


def _usable(documents: list[Any]) -> Iterator[jwt.PyJWK]:
    for document in documents:
        if not isinstance(document, dict) or document.get("use", "sig") != "sig":
            continue
        if document.get("kty") not in ("RSA", "EC", "OKP") or "d" in document:
            continue  # a shared secret, or a private key, which does not belong here
        if not isinstance(document.get("kid"), str | None):
            continue
        try:
            key = jwt.PyJWK(document)
        except jwt.PyJWTError:
            continue
        is_weak = key.key_type == "RSA" and key.key.key_size < _MIN_RSA_BITS
        if key.algorithm_name in ALGORITHMS and not is_weak:
            yield key


def _documents(keys: dict[str | None, jwt.PyJWK]) -> dict[str | None, Any]:
    return {key_id: key._jwk_data for key_id, key in keys.items()}
