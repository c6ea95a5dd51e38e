"""Signed tokens: which are accepted, and what they say."""

from __future__ import annotations

import base64
import hmac
import json
import time
from typing import Any

import jwt
import pytest
from msgspec import structs

from tests.support.clock import FakeClock
from tests.support.issuer import AUDIENCE, ISSUER, Issuer, key_set
from ts_stateful.config.access import JwtAuth
from ts_stateful.principals.authenticator import Call
from ts_stateful.principals.key_set import KeySet
from ts_stateful.principals.key_sources import KeySource
from ts_stateful.principals.tokens import Tokens
from ts_stateful.protocol.errors import KeysUnavailable, Unauthenticated
from ts_stateful.protocol.sagemaker import CUSTOM_ATTRIBUTES

_SETTINGS = JwtAuth(issuer=ISSUER, audience=AUDIENCE, jwks="unused", leeway_sec=5)


class Published(KeySource):
    """A source whose document a test replaces; counts the readings."""

    def __init__(self, data: bytes) -> None:
        self.data = data
        self.num_reads = 0

    def read(self) -> bytes:
        """See `KeySource`."""
        self.num_reads += 1
        return self.data


class CountedKeys(KeySet):
    """A key set that counts the keys it was asked for."""

    def __init__(self, source: Published) -> None:
        super().__init__(source, 300)
        self.num_found = 0
        self.refresh()

    def find(self, key_id: str | None) -> jwt.PyJWK:
        """See `KeySet`."""
        self.num_found += 1
        return super().find(key_id)


class UnixClock(FakeClock):
    """A clock near the real time, which the library reads."""

    def unix(self) -> float:
        """See `Clock`."""
        return self.now


def verifier(issuer: Issuer, settings: JwtAuth = _SETTINGS) -> Tokens:
    keys = KeySet(Published(issuer.key_set), 300)
    keys.refresh()
    return Tokens(settings, keys)


def bearer(token: str) -> Call:
    return Call((("authorization", f"Bearer {token}"),))


@pytest.fixture(scope="module")
def issuer() -> Issuer:
    """An issuer with one key."""
    return Issuer()


@pytest.mark.parametrize("algorithm", ["ES256", "EdDSA", "RS256", "PS512"])
def test_a_token_names_its_principal(algorithm: str) -> None:
    """Signed by any algorithm with a private key."""
    issuer = Issuer(algorithm=algorithm)
    assert verifier(issuer).principal_of(bearer(issuer.token("alice"))) == "alice"


def test_another_claim_and_another_header_may_hold_them(issuer: Issuer) -> None:
    """Then the token stands alone or after `Bearer`, in any case."""
    tokens = verifier(issuer, structs.replace(_SETTINGS, tenant_claim="org", header="X-Token"))
    token = issuer.token("alice", org="acme")
    for value in (token, f"bearer {token}", f"BEARER  {token}"):
        assert tokens.principal_of(Call((("x-token", value),))) == "acme"
    with pytest.raises(Unauthenticated, match="a claim is missing"):
        tokens.principal_of(Call((("x-token", issuer.token("alice")),)))


def test_a_grpc_message_and_sagemaker_carry_the_token_too(issuer: Issuer) -> None:
    """As the input `authorization`, and as the attribute `token`."""
    token = issuer.token("alice")
    in_message = Call((("authorization", f"Bearer {token}"),), in_message=True)
    assert verifier(issuer).principal_of(in_message) == "alice"
    tokens = verifier(issuer, structs.replace(_SETTINGS, header=CUSTOM_ATTRIBUTES))
    attributes = Call(((CUSTOM_ATTRIBUTES.lower(), f"trace=1,token={token}"),))
    assert tokens.principal_of(attributes) == "alice"


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"life_s": -60}, "expired"),
        ({"exp": None}, "a claim is missing"),
        ({"exp": 10**400}, "malformed"),
        ({"exp": float("inf")}, "malformed"),
        ({"nbf": float("inf")}, "malformed"),
        ({"nbf": 2**40}, "not valid yet"),
        ({"iat": 2**40}, "not valid yet"),
        ({"aud": "other"}, "audience"),
        ({"aud": None}, "a claim is missing"),
        ({"iss": "https://evil.example"}, "issuer"),
        ({"iss": None}, "a claim is missing"),
        ({"sub": None}, "a claim is missing"),
        ({"sub": ""}, "printable"),
        ({"sub": "a\nb"}, "printable"),
        ({"sub": "x" * 257}, "printable"),
    ],
)
def test_a_token_with_other_claims_is_refused(
    issuer: Issuer, changes: dict[str, Any], reason: str
) -> None:
    """Each of the claims is required."""
    with pytest.raises(Unauthenticated, match=reason) as refusal:
        verifier(issuer).principal_of(bearer(issuer.token("alice", **changes)))
    assert refusal.value.field == "Authorization"


@pytest.mark.parametrize("key_id", ["2", None])
def test_a_token_of_an_unknown_key_is_refused_as_others_are(key_id: str | None) -> None:
    """With the header's name; one that names no key fits a set of one key alone."""
    keys = KeySet(Published(key_set(Issuer("0").jwk, Issuer("1").jwk)), 300)
    keys.refresh()
    head = {"alg": "ES256"} if key_id is None else {"alg": "ES256", "kid": key_id}
    with pytest.raises(Unauthenticated, match="not one of the issuer's") as refusal:
        Tokens(_SETTINGS, keys).principal_of(bearer(f"{_base64(json.dumps(head).encode())}.e30.AA"))
    assert refusal.value.field == "Authorization"


def test_the_leeway_covers_different_clocks(issuer: Issuer) -> None:
    """And no more than that."""
    assert verifier(issuer).principal_of(bearer(issuer.token("alice", life_s=-2))) == "alice"


def test_an_end_may_be_written_as_text(issuer: Issuer) -> None:
    """Some issuers write numbers so, and the library accepts it."""
    end = str(int(time.time()) + 600)
    assert verifier(issuer).principal_of(bearer(issuer.token("alice", exp=end))) == "alice"


def test_a_claim_that_is_no_text_is_refused(issuer: Issuer) -> None:
    """A number would have two spellings."""
    tokens = verifier(issuer, structs.replace(_SETTINGS, tenant_claim="org"))
    for value in (7, True, ["a"], {"a": 1}):
        with pytest.raises(Unauthenticated):
            tokens.principal_of(bearer(issuer.token("alice", org=value)))


def test_signatures_of_others_are_refused(issuer: Issuer) -> None:
    """Of another key with the same id, of no key, and of the public key taken for a secret."""
    tokens = verifier(issuer)
    claims = {"sub": "alice", "iss": ISSUER, "aud": AUDIENCE, "exp": int(time.time()) + 60}
    forged = (
        Issuer().token("alice"),
        _unsigned_token(claims),
        _hmac_token(claims, json.dumps(issuer.jwk).encode()),
        Issuer(algorithm="RS256").token("alice"),
        "..".join(issuer.token("alice").rsplit(".", 1)),
    )
    for token in forged:
        with pytest.raises(Unauthenticated):
            tokens.principal_of(bearer(token))


def _hmac_token(claims: dict[str, Any], secret: bytes) -> str:
    """Sign with a secret that all clients know; the library refuses to."""
    parts = [{"alg": "HS256", "kid": "1"}, claims]
    signed = ".".join(_base64(json.dumps(part).encode()) for part in parts)
    return f"{signed}.{_base64(hmac.digest(secret, signed.encode(), 'sha256'))}"


def _unsigned_token(claims: dict[str, Any]) -> str:
    parts = [{"alg": "none", "kid": "1"}, claims]
    return ".".join([*(_base64(json.dumps(part).encode()) for part in parts), ""])


def _base64(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).decode().rstrip("=")


@pytest.mark.parametrize(
    "token",
    ["", "x", "a.b.c", "..", "é.é.é", "x" * 9000, "eyJhbGciOiJFUzI1NiJ9..", "[" * 4000 + ".a.b"],
)
def test_a_malformed_token_is_refused(issuer: Issuer, token: str) -> None:
    """Without a hint at what the library said of it."""
    with pytest.raises(Unauthenticated):
        verifier(issuer).principal_of(bearer(token))


def test_deep_headers_and_odd_key_ids_are_refused(issuer: Issuer) -> None:
    """They are read before the signature is verified."""
    deep = "[" * 2000 + "]" * 2000
    for header in (
        deep,
        '{"alg": "ES256", "kid": 1}',
        '{"alg": "ES256", "kid": "1", "crit": ["x"]}',
    ):
        head = _base64(header.encode())
        with pytest.raises(Unauthenticated):
            verifier(issuer).principal_of(bearer(f"{head}.e30.AA"))


def test_a_token_is_verified_once_and_recognized_until_it_expires(issuer: Issuer) -> None:
    """Its expiry is looked at every time; so are the keys."""
    source = Published(issuer.key_set)
    keys = CountedKeys(source)
    clock = UnixClock(time.time())
    tokens = Tokens(_SETTINGS, keys, clock)
    call = bearer(issuer.token("alice", life_s=60))
    assert [tokens.principal_of(call), tokens.principal_of(call)] == ["alice", "alice"]
    assert keys.num_found == 1
    clock.now += 66
    tokens.principal_of(call)  # the real time has not come yet, so the library accepts it again
    assert keys.num_found == 2
    source.data = Issuer("2").key_set
    keys.refresh()
    with pytest.raises(Unauthenticated):
        tokens.principal_of(call)


def test_a_revoked_key_is_refused_and_a_new_one_accepted(issuer: Issuer) -> None:
    """As soon as the key set was read again."""
    new = Issuer("2")
    source = Published(issuer.key_set)
    keys = KeySet(source, 300)
    keys.refresh()
    tokens = Tokens(_SETTINGS, keys)
    old_call, new_call = bearer(issuer.token("alice")), bearer(new.token("alice"))
    assert tokens.principal_of(old_call) == "alice"
    with pytest.raises(Unauthenticated):
        tokens.principal_of(new_call)
    assert source.num_reads == 1  # no request reads keys
    source.data = key_set(new.jwk)
    keys.refresh()
    assert tokens.principal_of(new_call) == "alice"
    with pytest.raises(Unauthenticated):
        tokens.principal_of(old_call)


def test_without_keys_it_cannot_be_decided(issuer: Issuer) -> None:
    """A client may try again."""
    tokens = Tokens(_SETTINGS, KeySet(Published(b"{}"), 300))
    with pytest.raises(KeysUnavailable) as refusal:
        tokens.principal_of(bearer(issuer.token("alice")))
    assert refusal.value.retryable
