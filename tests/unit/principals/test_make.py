"""Authenticators by their configuration."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.issuer import AUDIENCE, ISSUER, Issuer
from ts_stateful.config.access import HeaderAuth, JwtAuth
from ts_stateful.config.schema import ConfigError
from ts_stateful.principals.authenticator import Call
from ts_stateful.principals.make import make_authenticator
from ts_stateful.principals.tokens import Tokens
from ts_stateful.protocol.errors import KeysUnavailable


def _jwt(jwks: str) -> JwtAuth:
    return JwtAuth(issuer=ISSUER, audience=AUDIENCE, jwks=jwks)


def test_each_mode_has_its_own(tmp_path: Path) -> None:
    """A relative file of keys is in the archive."""
    issuer = Issuer()
    (tmp_path / "keys.json").write_bytes(issuer.key_set)
    call = Call((("x-principal", "alice"), ("authorization", issuer.token("bob"))))
    assert make_authenticator("none", tmp_path).principal_of(call) is None
    assert make_authenticator(HeaderAuth("X-Principal"), tmp_path).principal_of(call) == "alice"
    tokens = make_authenticator(_jwt("keys.json"), tmp_path)
    assert isinstance(tokens, Tokens)
    assert tokens.principal_of(call) == "bob"


def test_a_file_without_keys_stops_the_start(tmp_path: Path) -> None:
    """It will not mend itself."""
    with pytest.raises(ConfigError, match=r"handler\.auth\.jwks"):
        make_authenticator(_jwt("missing.json"), tmp_path)


def test_an_issuer_may_be_down_at_the_start(tmp_path: Path) -> None:
    """Requests are refused until its keys were read."""
    tokens = make_authenticator(_jwt("http://127.0.0.1:1/keys"), tmp_path)
    assert isinstance(tokens, Tokens)
    with pytest.raises(KeysUnavailable):
        tokens.principal_of(Call((("authorization", Issuer().token("alice")),)))
