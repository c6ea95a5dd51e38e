"""The authenticator of a configuration."""

from __future__ import annotations

from pathlib import Path

from ts_stateful.config.access import HeaderAuth, JwtAuth
from ts_stateful.config.schema import ConfigError
from ts_stateful.principals.authenticator import Authenticator, NoPrincipals, ProxyHeader
from ts_stateful.principals.key_sources import KeySource

__all__ = ["make_authenticator"]


def make_authenticator(auth: str | HeaderAuth | JwtAuth, folder: Path) -> Authenticator:
    """Make the authenticator of `handler.auth`; `folder` is the unpacked archive.

    Keys at a URL may be missing at first: requests are then refused until they are read.

    Raises:
        ConfigError: the packages for tokens are not installed, or a file of keys cannot be read.
    """
    if isinstance(auth, HeaderAuth):
        return ProxyHeader(auth)
    if not isinstance(auth, JwtAuth):
        return NoPrincipals()
    try:
        from ts_stateful.principals.key_set import KeySet  # noqa: PLC0415 - an extra
        from ts_stateful.principals.tokens import Tokens  # noqa: PLC0415 - an extra
    except ImportError as missing:
        raise ConfigError(
            f"model-config.yaml: handler.auth.mode: jwt needs the package {missing.name};"
            " install torchserve-stateful[jwt]"
        ) from missing
    source = KeySource(auth.jwks, auth.jwks_timeout_sec, folder)
    keys = KeySet(source, auth.jwks_refresh_sec)
    keys.start()
    if source.is_file and not keys.version:
        raise ConfigError(
            f"model-config.yaml: handler.auth.jwks: {auth.jwks!r} has no usable key; the log has the reason"
        )
    return Tokens(auth, keys)
