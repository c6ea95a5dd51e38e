"""The place of an issuer's key set."""

from __future__ import annotations

from pathlib import Path

import httpx

from ts_stateful.clock import SYSTEM_CLOCK, Clock

__all__ = ["KeySource", "KeysUnreadable"]

_MAX_BYTES = 1_000_000


class KeysUnreadable(Exception):
    """The key set cannot be read; the message has the reason."""


class KeySource:
    """The key set of `handler.auth.jwks`: a URL, or a file that an operator may replace, relative to the archive's `folder`.

    Redirects are not followed: they could lead to another issuer.
    """

    def __init__(
        self, jwks: str, timeout_s: float, folder: Path, clock: Clock = SYSTEM_CLOCK
    ) -> None:
        self.is_file = "://" not in jwks
        self._place = folder / jwks if self.is_file else jwks
        self._timeout_s = timeout_s
        self._clock = clock

    def read(self) -> bytes:
        """Return the JSON document. May wait.

        Raises:
            KeysUnreadable: it is missing, too large, or not sent in time.
        """
        if isinstance(self._place, str):
            return self._fetch(self._place)
        try:
            with self._place.open("rb") as file:
                data = file.read(_MAX_BYTES + 1)
        except OSError as error:
            raise KeysUnreadable(f"{self._place}: {error.strerror}") from None
        return _bounded(data, str(self._place))

    def _fetch(self, url: str) -> bytes:
        ends_at = self._clock.monotonic() + self._timeout_s
        data = b""
        try:
            with (
                httpx.Client(timeout=self._timeout_s, follow_redirects=False) as client,
                client.stream("GET", url, headers={"Accept": "application/json"}) as response,
            ):
                if response.status_code != 200:
                    raise KeysUnreadable(f"{url}: status {response.status_code}, not 200")
                for chunk in response.iter_bytes():
                    data = _bounded(data + chunk, url)
                    if self._clock.monotonic() > ends_at:
                        raise KeysUnreadable(f"{url}: not sent in {self._timeout_s:g} s")
        except (httpx.InvalidURL, ImportError, ValueError) as error:
            names = "http_proxy, https_proxy, all_proxy or no_proxy"
            raise KeysUnreadable(f"{names} cannot be used: {error}") from None
        except httpx.HTTPError as error:
            raise KeysUnreadable(f"{url}: {error or type(error).__name__}") from None
        return data


def _bounded(data: bytes, name: str) -> bytes:
    if len(data) > _MAX_BYTES:
        raise KeysUnreadable(f"{name}: larger than {_MAX_BYTES:,} bytes")
    return data
