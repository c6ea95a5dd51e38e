"""Principals in headers that a proxy sets, and the authenticator of a configuration."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.issuer import AUDIENCE, ISSUER, Issuer
from ts_stateful.config.access import HeaderAuth, JwtAuth
from ts_stateful.config.schema import ConfigError
from ts_stateful.principals.authenticator import Call, NoPrincipals, ProxyHeader, make_authenticator
from ts_stateful.principals.tokens import Tokens
from ts_stateful.protocol.errors import KeysUnavailable, Unauthenticated
from ts_stateful.protocol.sagemaker import CUSTOM_ATTRIBUTES

_HEADER = ProxyHeader(HeaderAuth(header="X-Principal"))


def test_without_authentication_no_call_has_a_principal() -> None:
    """Whatever its headers are."""
    call = Call((("x-principal", "alice"),))
    assert NoPrincipals().principal_of(call) is None


def test_the_header_names_the_principal() -> None:
    """In any case of its name, without the blanks that HTTP allows around a value."""
    assert _HEADER.principal_of(Call((("host", "h"), ("x-principal", " alice\t")))) == "alice"


@pytest.mark.parametrize(
    "name", ["\u0141ukasz", "\u5317\u4eac", "Zo\u00eb", "voil\u00e0", "Zo\u00c3\u00ab"]
)
def test_a_name_in_utf8_is_that_name(name: str) -> None:
    """HTTP's servers read headers as Latin-1, and so does SageMaker's attribute come."""
    sent = name.encode().decode("latin-1")
    assert _HEADER.principal_of(Call((("x-principal", sent),))) == name
    header = ProxyHeader(HeaderAuth(header=CUSTOM_ATTRIBUTES))
    attributes = Call(((CUSTOM_ATTRIBUTES.lower(), f"trace=1,principal={sent} "),))
    assert header.principal_of(attributes) == name


@pytest.mark.parametrize("name", ["Zo\u00eb", "\u0141ukasz", "\u00c3"])
def test_a_name_that_is_not_utf8_stays_as_it_was_read(name: str) -> None:
    """As Latin-1, or by a server that decodes headers."""
    assert _HEADER.principal_of(Call((("x-principal", name),))) == name


@pytest.mark.parametrize(
    "pairs",
    [
        (),
        (("x-principal", ""),),
        (("x-principal", "  "),),
        (("x-principal", "a"), ("x-principal", "a")),
        (("x-principal", "proxy"), ("x-principal", "client")),
        (("x-principal", "a\x00b"),),
        (("x-principal", "a\u2028b"),),
        (("x-principal", "a" * 257),),
        (("x-principals", "a"),),
    ],
)
def test_a_call_without_exactly_one_name_is_refused(pairs: tuple[tuple[str, str], ...]) -> None:
    """Of two headers, one is the client's."""
    with pytest.raises(Unauthenticated) as refusal:
        _HEADER.principal_of(Call(pairs))
    assert refusal.value.field == "X-Principal"
    assert refusal.value.status == 401


def test_an_input_of_a_grpc_message_names_no_principal() -> None:
    """No proxy has set it: it is the client's own claim."""
    with pytest.raises(Unauthenticated, match="HTTP"):
        _HEADER.principal_of(Call((("x-principal", "alice"),), in_message=True))


def test_sagemaker_names_the_principal_in_its_custom_attributes() -> None:
    """Beside other attributes; the whole header is no name."""
    header = ProxyHeader(HeaderAuth(header=CUSTOM_ATTRIBUTES))
    name = CUSTOM_ATTRIBUTES.lower()
    assert header.principal_of(Call(((name, "trace=1, principal=alice,b=c"),))) == "alice"
    for value in ("alice", "trace=1", "principal=", "principal=a,principal=b"):
        with pytest.raises(Unauthenticated):
            header.principal_of(Call(((name, value),)))


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
