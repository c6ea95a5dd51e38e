"""Principals in headers that a proxy sets."""

from __future__ import annotations

import pytest

from ts_stateful.config.access import HeaderAuth
from ts_stateful.principals.authenticator import Call, NoPrincipals, ProxyHeader
from ts_stateful.protocol.errors import Unauthenticated
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
