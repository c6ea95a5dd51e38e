"""Places of an issuer's key set: a file, or a URL."""

from __future__ import annotations

from pathlib import Path
from typing import Protocol

import httpx

from ts_stateful.clock import SYSTEM_CLOCK, Clock

__all__ = ["FileSource", "KeySource", "KeysUnreadable", "UrlSource", "source_of"]

_MAX_BYTES = 1_000_000


class KeysUnreadable(Exception):
    """The key set cannot be read; the message has the reason."""


class KeySource(Protocol):
    """A key set that can be read again."""

    def read(self) -> bytes:
        """Return the JSON document. May wait.

        Raises:
            KeysUnreadable: it is missing, too large, or not sent in time.
        """


class FileSource:
    """A key set in a file, which an operator may replace."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def read(self) -> bytes:
        """See `KeySource`."""
        try:
            with self._path.open("rb") as file:
                data = file.read(_MAX_BYTES + 1)
        except OSError as error:
            raise KeysUnreadable(f"{self._path}: {error.strerror}") from None
        return _bounded(data, str(self._path))


class UrlSource:
    """A key set at a URL. Redirects are not followed: they could lead to another issuer."""

    def __init__(self, url: str, timeout_s: float, clock: Clock = SYSTEM_CLOCK) -> None:
        self._url = url
        self._timeout_s = timeout_s
        self._clock = clock

    def read(self) -> bytes:
        """See `KeySource`."""
        ends_at = self._clock.monotonic() + self._timeout_s
        data = b""
        try:
            with (
                httpx.Client(timeout=self._timeout_s, follow_redirects=False) as client,
                client.stream("GET", self._url, headers={"Accept": "application/json"}) as response,
            ):
                if response.status_code != 200:
                    raise KeysUnreadable(f"{self._url}: status {response.status_code}, not 200")
                for chunk in response.iter_bytes():
                    data = _bounded(data + chunk, self._url)
                    if self._clock.monotonic() > ends_at:
                        raise KeysUnreadable(f"{self._url}: not sent in {self._timeout_s:g} s")
        except (httpx.InvalidURL, ImportError, ValueError) as error:
            names = "http_proxy, https_proxy, all_proxy or no_proxy"
            raise KeysUnreadable(f"{names} cannot be used: {error}") from None
        except httpx.HTTPError as error:
            raise KeysUnreadable(f"{self._url}: {error or type(error).__name__}") from None
        return data


def source_of(jwks: str, timeout_s: float, folder: Path) -> KeySource:
    """Return the source of `handler.auth.jwks`; a relative file is in the archive's `folder`."""
    if "://" in jwks:
        return UrlSource(jwks, timeout_s)
    return FileSource(folder / jwks)


def _bounded(data: bytes, name: str) -> bytes:
    if len(data) > _MAX_BYTES:
        raise KeysUnreadable(f"{name}: larger than {_MAX_BYTES:,} bytes")
    return data
