"""Stores by their URL. A backend's client library is imported when its scheme is used."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import SplitResult, unquote, urlsplit

from ts_stateful.config.schema import ConfigError, StoreConfig
from ts_stateful.config.store import URL_FORMS
from ts_stateful.store.backends.file import FileStore
from ts_stateful.store.base import Store

__all__ = ["open_store", "redacted"]

_REDIS = ("redis", "rediss")


def open_store(url: str, options: StoreConfig | None = None) -> Store:
    """Open the store at `url`; `options.url` and `options.policy` are not used. No server is contacted before the first call.

    Raises:
        ConfigError: the scheme is unknown, the URL is incomplete, a package is missing, or the folder is not private.
        StoreUnavailable: a folder cannot be made or written.
    """
    options = options or StoreConfig()
    variable = options.encryption_key_env
    if variable is None:
        return _open(url, options)
    with _extra("encryption"):
        from ts_stateful.store.backends.sealed import SealedStore, read_keys  # noqa: PLC0415 - an extra

    keys = read_keys(variable)
    return SealedStore(_open(url, options), keys)


def redacted(url: str) -> str:
    """Return the URL without its secrets: user, password and parameters."""
    parts = _split(url)
    host = parts.netloc.rpartition("@")[2]
    hidden = "***@" if "@" in parts.netloc else ""
    return f"{parts.scheme}://{hidden}{host}{parts.path}{'?***' if parts.query else ''}"


def _open(url: str, options: StoreConfig) -> Store:
    parts = _split(url)
    if options.password_env is not None and parts.scheme not in _REDIS:
        raise ConfigError(
            f"handler.store.passwordEnv: {parts.scheme or 'no'}:// takes no password; only redis:// and rediss:// do"
        )
    if parts.scheme == "file":
        return FileStore(_folder(url, parts), fsync=options.fsync)
    if parts.scheme in _REDIS:
        with _extra("redis"):
            from ts_stateful.store.backends.redis import RedisStore  # noqa: PLC0415 - an extra

        return RedisStore(url, timeout_s=options.timeout_sec, password=_password(parts, options))
    if parts.scheme == "s3":
        with _extra("s3"):
            from ts_stateful.store.backends.s3 import S3Store  # noqa: PLC0415 - an extra

        return S3Store(url, timeout_s=options.timeout_sec)
    raise ConfigError(
        f"handler.store.url: unknown scheme {parts.scheme or 'no'}://; use one of {URL_FORMS}"
    )


def _password(parts: SplitResult, options: StoreConfig) -> str | None:
    variable = options.password_env
    if variable is None:
        return None
    if parts.password is not None:
        raise ConfigError(
            "handler.store.passwordEnv: handler.store.url has a password too; remove one"
        )
    password = os.environ.get(variable, "")
    if not password:
        raise ConfigError(f"handler.store.passwordEnv: {variable} is not set or empty; set it")
    return password


@contextlib.contextmanager
def _extra(name: str) -> Iterator[None]:
    """Name the extra that is missing if an import fails."""
    try:
        yield
    except ModuleNotFoundError as error:
        raise ConfigError(
            f"handler.store: {error.name} is not installed; pip install 'torchserve-stateful[{name}]'"
        ) from error


def _folder(url: str, parts: SplitResult) -> Path:
    is_path = parts.path.startswith("/") and parts.path.strip("/")
    if parts.netloc or parts.query or parts.fragment or not is_path:
        raise ConfigError(
            f"handler.store.url: {redacted(url)} is not a folder; write it like file:///dev/shm/ts-stateful, with three slashes"
        )
    return Path(unquote(parts.path))


def _split(url: str) -> SplitResult:
    try:
        return urlsplit(url)
    except ValueError:
        raise ConfigError(
            "handler.store.url: not a URL; write it like file:///dev/shm/ts-stateful"
        ) from None
