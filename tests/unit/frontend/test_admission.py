"""The admission of requests: credentials and ids."""

from __future__ import annotations

from typing import Any

import pytest

from tests.support.fake_dispatcher import NAMES
from ts_stateful.config.access import HeaderAuth
from ts_stateful.frontend.admission import Admission, call_of
from ts_stateful.frontend.parsing.headers import RequestHeaders
from ts_stateful.principals.authenticator import Authenticator, Call, ProxyHeader
from ts_stateful.protocol.errors import InvalidRequest, Unauthenticated
from ts_stateful.protocol.events import Submit
from ts_stateful.protocol.requests import Close, Fork, Open, Prompt, Step

_STRONG = "5f0c6c1a2b3d4e5f60718293a4b5c6d7"


class Recorded(Authenticator):
    """An authenticator that keeps the calls."""

    def __init__(self) -> None:
        self.calls: list[Call] = []

    def principal_of(self, call: Call) -> str:
        """See `Authenticator`."""
        self.calls.append(call)
        return "alice"


def test_the_credentials_of_http_are_headers_and_those_of_grpc_inputs() -> None:
    """TorchServe puts a mapping under the name of each part of a form: that is no header."""
    seen = Recorded()
    headers: dict[str, Any] = {"X-A": "1", "x-part": {"content-type": "text/plain"}}
    data: dict[str, Any] = {
        "data": b"{}",
        "Authorization": b"Bearer \xff",
        "n": {"a": 1},
        "big": b" " * 16_385,
    }
    assert Admission(seen).namespace_of(call_of(headers, in_message=False)).principal == "alice"
    Admission(seen).namespace_of(call_of(data, in_message=True))
    http, grpc = seen.calls
    assert http == Call((("x-a", "1"),))
    assert grpc == Call((("data", "{}"), ("authorization", "Bearer \ufffd")), in_message=True)


def test_a_part_of_a_form_is_no_proxys_header() -> None:
    """Nor are two headers in different cases one."""
    admission = Admission(ProxyHeader(HeaderAuth(header="X-A")))
    for headers in ({"X-A": {"content-type": ""}}, {"X-A": "alice", "x-a": "bob"}):
        with pytest.raises(Unauthenticated):
            admission.namespace_of(call_of(headers, in_message=False))


@pytest.mark.parametrize(
    ("command", "field"),
    [
        (Open(session_id="s"), "session_id"),
        (Step(session_id="seq_0"), "session_id"),
        (Fork(session_id=_STRONG, new_session_id="f"), "new_session_id"),
    ],
)
def test_strong_ids_are_asked_of_what_opens_sessions(command: Any, field: str) -> None:
    """By default any id will do; a principal's own ids need no strength."""
    message = Submit("r", command)
    Admission().check(message)
    Admission(client_ids="strong").check(Submit("r", command, principal="alice"))
    with pytest.raises(InvalidRequest) as refusal:
        Admission(client_ids="strong").check(message)
    assert refusal.value.field == field


@pytest.mark.parametrize(
    "command",
    [
        Open(session_id=_STRONG),
        Fork(session_id="s", new_session_id=_STRONG),
        Prompt(session_id="s", prompt="x"),
        Close(session_id="s"),
    ],
)
def test_strong_ids_and_open_sessions_are_taken(command: Any) -> None:
    """An old session may have a weak id."""
    Admission(client_ids="strong").check(Submit("r", command))


_PAGE = "https://app.example.com"


@pytest.mark.parametrize("origin", [_PAGE, "null", "http://127.0.0.1:8080", "", "x" * 10_000])
def test_pages_are_refused(origin: str) -> None:
    """Also pages without an origin, and those that claim to come from this server: it has none."""
    with pytest.raises(InvalidRequest, match="allowedOrigins") as caught:
        Admission(allowed_origins=("https://other.example.com",)).check_origin(origin)
    assert caught.value.field == "origin"
    assert len(caught.value.message) < 300


@pytest.mark.parametrize("allowed", [_PAGE, "*"])
def test_pages_of_allowed_origins_are_served(allowed: str) -> None:
    """By their exact origins, or all of them."""
    Admission(allowed_origins=("https://other.example.com", allowed)).check_origin(_PAGE)


@pytest.mark.parametrize(
    ("headers", "origin"),
    [
        ({"Origin": _PAGE}, _PAGE),
        ({"origin": _PAGE}, _PAGE),
        ({"Origin": {"content-type": "text/plain"}}, None),
        ({}, None),
    ],
)
def test_only_headers_of_http_name_pages(headers: dict[str, Any], origin: str | None) -> None:
    """A part of the body cannot pose as one. Over gRPC an input of that name is refused as every unknown one."""
    http = RequestHeaders.read({"Host": "127.0.0.1:8080", **headers}, NAMES, minting=False)
    assert http.origin == origin
    assert RequestHeaders.read(headers, NAMES, minting=False).origin is None
