"""A store by its URL.

Owns the schemes, and what of a URL may be shown. A backend's client library is imported when its scheme is used.
"""

from __future__ import annotations

from pathlib import Path
from urllib.parse import SplitResult, unquote, urlsplit

from ts_stateful.config import ConfigError
from ts_stateful.store.base import Store
from ts_stateful.store.config import StoreConfig
from ts_stateful.store.file import FileStore
from ts_stateful.store.memory import MemoryStore

__all__ = ["open_store", "redacted"]

_KNOWN = (
    "file:///folder, redis://host:port/db, rediss://host:port/db, s3://bucket/prefix, memory://"
)


def open_store(url: str, options: StoreConfig | None = None) -> Store:
    """The store at `url`; of `options` everything but its own `url` and the policy is used.

    Raises:
        ConfigError: the scheme is unknown, something is missing in the URL or installed, or the place is not private.
        StoreUnavailable: a folder cannot be made or written. Servers are not asked before the first call.
    """
    options = options or StoreConfig()
    return _open(url, options)


def redacted(url: str) -> str:
    """The URL without what nobody but the server should read: user, password and parameters."""
    parts = _split(url)
    host = parts.netloc.rpartition("@")[2]
    hidden = "***@" if "@" in parts.netloc else ""
    return f"{parts.scheme}://{hidden}{host}{parts.path}{'?***' if parts.query else ''}"


def _open(url: str, options: StoreConfig) -> Store:
    parts = _split(url)
    if parts.scheme == "file":
        return FileStore(_folder(url, parts), fsync=options.fsync)
    if parts.scheme == "memory":
        return MemoryStore()
    raise ConfigError(f"handler.store.url: {parts.scheme or 'no'}:// is none of {_KNOWN}")


def _folder(url: str, parts: SplitResult) -> Path:
    if parts.netloc or parts.query or parts.fragment or not parts.path.strip("/"):
        raise ConfigError(
            f"handler.store.url: {redacted(url)} must be like file:///dev/shm/ts-stateful, with three slashes"
        )
    return Path(unquote(parts.path))


def _split(url: str) -> SplitResult:
    try:
        return urlsplit(url)
    except ValueError:
        raise ConfigError("handler.store.url: not a URL") from None
