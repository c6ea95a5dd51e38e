"""The principal of a call: the tenant that sends it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable
from pathlib import Path
from typing import Final

from msgspec import Struct

from ts_stateful.config.access import HeaderAuth, JwtAuth
from ts_stateful.config.schema import ConfigError
from ts_stateful.principals.key_sources import KeySource
from ts_stateful.protocol.errors import InvalidRequest, Unauthenticated
from ts_stateful.protocol.sagemaker import CUSTOM_ATTRIBUTES
from ts_stateful.protocol.tenants import check_principal

__all__ = ["Authenticator", "Call", "NoPrincipals", "ProxyHeader", "make_authenticator", "single"]

# The only header of clients that SageMaker passes on; it holds `name=value` pairs, separated by commas.
_ATTRIBUTES: Final = CUSTOM_ATTRIBUTES.lower()


class Call(Struct, frozen=True):
    """The names and values of a call beside its document.

    `pairs` are names in lower case with their values: HTTP headers or gRPC metadata, whose bytes are read as Latin-1. With
    `in_message` they are inputs of a gRPC message, which no proxy reads or writes.
    """

    pairs: tuple[tuple[str, str], ...] = ()
    in_message: bool = False

    def values(self, name: str, attribute: str) -> list[str]:
        """Return the values of a header, or those of an attribute if the header is SageMaker's custom attributes."""
        name = name.lower()
        values = [value.strip(" \t") for other, value in self.pairs if other == name]
        if name != _ATTRIBUTES:
            return values
        return list(_attributes(values, attribute))


def _attributes(values: Iterable[str], attribute: str) -> Iterable[str]:
    for pair in ",".join(values).split(","):
        name, equals, value = pair.partition("=")
        if equals and name.strip() == attribute:
            yield value.strip(" \t")


def single(values: list[str], name: str) -> str:
    """Return the only value.

    Raises:
        Unauthenticated: there is none, or there are several, of which a client may have added one.
    """
    if len(values) != 1 or not values[0]:
        reason = "comes twice; send it once" if len(values) > 1 else "is missing; send it"
        raise Unauthenticated(f"the header {name} {reason} with every request", field=name)
    return values[0]


class Authenticator(ABC):
    """The rule by which principals are found. Called for every request, so it never waits."""

    @abstractmethod
    def principal_of(self, call: Call) -> str | None:
        """Return the principal of a call; None if sessions have no principals.

        Raises:
            Unauthenticated: the call names none that is accepted.
            KeysUnavailable: that cannot be decided yet.
        """


class NoPrincipals(Authenticator):
    """`auth: none`: every call is taken, and an id is all that a session needs."""

    def principal_of(self, call: Call) -> str | None:
        """See `Authenticator`."""
        return None


class ProxyHeader(Authenticator):
    """`mode: header`: the principal is the value of a header that a proxy has set, in UTF-8 or else in Latin-1."""

    def __init__(self, settings: HeaderAuth) -> None:
        self._header = settings.header

    def principal_of(self, call: Call) -> str:
        """See `Authenticator`. A gRPC message is refused: its inputs are the client's own."""
        if call.in_message:
            raise Unauthenticated(
                "with `handler.auth.mode: header` this server takes requests over HTTP only: TorchServe passes no gRPC"
                " metadata on; use HTTP, or `mode: jwt`"
            )
        name = single(call.values(self._header, "principal"), self._header)
        try:
            return check_principal(_in_utf8(name))
        except InvalidRequest as error:
            raise Unauthenticated(error.message, field=self._header) from None


def _in_utf8(value: str) -> str:
    """Return a value whose bytes were read as Latin-1 as their UTF-8; without change if they are not UTF-8."""
    try:
        return value.encode("latin-1").decode()
    except UnicodeError:
        return value


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
