"""Principals in signed tokens: JSON Web Tokens, RFC 7519."""

from __future__ import annotations

import hashlib
from typing import Any, Final, NamedTuple

import jwt
from lru import LRU

from ts_stateful.clock import SYSTEM_CLOCK, Clock
from ts_stateful.config.access import JwtAuth
from ts_stateful.principals.authenticator import Authenticator, Call, single
from ts_stateful.principals.key_set import ALGORITHMS, KeySet
from ts_stateful.protocol.errors import InvalidRequest, Unauthenticated
from ts_stateful.protocol.tenants import check_principal

__all__ = ["IN_MESSAGES", "Tokens"]

IN_MESSAGES: Final = "authorization"
"""The input of a gRPC message that holds the token, as TorchServe passes no metadata on."""

_SCHEME: Final = "bearer "
_MAX_CHARS = 8192
_REMEMBERED = 10_000
_REASONS: tuple[tuple[type[jwt.InvalidTokenError], str], ...] = (
    (jwt.ExpiredSignatureError, "it has expired"),
    (jwt.ImmatureSignatureError, "it is not valid yet"),
    (jwt.InvalidAudienceError, "it is for another audience"),
    (jwt.InvalidIssuerError, "it has another issuer"),
    (jwt.MissingRequiredClaimError, "a claim is missing"),
    (jwt.InvalidSignatureError, "its signature is wrong"),
    (jwt.InvalidAlgorithmError, "its algorithm is not that of the key"),
)


class _Verified(NamedTuple):
    """The principal of a token that was verified, until when (Unix seconds), and by which keys."""

    principal: str
    until: float
    version: int


class Tokens(Authenticator):
    """`mode: jwt`. A token is verified once, then recognized by its hash until it expires or the keys change."""

    def __init__(self, settings: JwtAuth, keys: KeySet, clock: Clock = SYSTEM_CLOCK) -> None:
        self._settings = settings
        self._keys = keys
        self._clock = clock
        self._verified: LRU[bytes, _Verified] = LRU(_REMEMBERED)

    def principal_of(self, call: Call) -> str:
        """See `Authenticator`."""
        name = IN_MESSAGES if call.in_message else self._settings.header
        token = single(call.values(name, "token"), name)
        if token[: len(_SCHEME)].lower() == _SCHEME:
            token = token[len(_SCHEME) :].lstrip(" ")
        if len(token) > _MAX_CHARS:
            raise Unauthenticated(f"the token has more than {_MAX_CHARS:,} characters", field=name)
        key, version = hashlib.sha256(token.encode()).digest(), self._keys.version
        known = self._verified.get(key)
        if known is None or known.version != version or known.until <= self._clock.unix():
            known = self._verify(token, version, name)
            self._verified[key] = known
        return known.principal

    def _verify(self, token: str, version: int, name: str) -> _Verified:
        settings = self._settings
        try:
            key = self._keys.find(jwt.get_unverified_header(token).get("kid"))
            claims = jwt.decode(
                token,
                key,
                algorithms=list(ALGORITHMS),
                audience=settings.audience,
                issuer=settings.issuer,
                leeway=settings.leeway_sec,
                options={"require": ["exp", "aud", "iss", settings.tenant_claim]},
            )
            until = float(int(claims["exp"])) + settings.leeway_sec  # text of digits is accepted
        except Unauthenticated as error:
            raise Unauthenticated(error.message, field=name) from None
        except (jwt.InvalidTokenError, OverflowError) as error:
            reasons = (text for kind, text in _REASONS if isinstance(error, kind))
            reason = next(reasons, "it is malformed")
            raise Unauthenticated(
                f"the token is refused: {reason}; get a new one", field=name
            ) from None
        return _Verified(self._principal_in(claims, name), until, version)

    def _principal_in(self, claims: dict[str, Any], name: str) -> str:
        value = claims[self._settings.tenant_claim]
        try:
            return check_principal(value if isinstance(value, str) else "")
        except InvalidRequest as error:
            reason = f"the token's claim {self._settings.tenant_claim}: {error.message}"
            raise Unauthenticated(reason, field=name) from None
