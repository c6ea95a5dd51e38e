"""Requests that web pages make browsers send."""

from __future__ import annotations

from typing import Any

import pytest

from tests.support.fake_dispatcher import NAMES, FixedSeeds
from ts_stateful.frontend.parsing.headers import RequestHeaders
from ts_stateful.frontend.parsing.origins import OriginGuard
from ts_stateful.frontend.parsing.requests import RequestParser
from ts_stateful.frontend.pending_response import ClientKind, PendingResponse
from ts_stateful.protocol.errors import InvalidRequest
from ts_stateful.protocol.events import Submit
from ts_stateful.protocol.profile import Profile

PAGE = "https://app.example.com"


def parse(headers: dict[str, Any], *allowed: str) -> object:
    """Parse an `open` with these headers."""
    guard = OriginGuard(RequestParser(Profile.ASYNC, NAMES, rng=FixedSeeds()), allowed)
    read = RequestHeaders.read({"Host": "127.0.0.1:8080", **headers}, NAMES, minting=False)
    pending = PendingResponse("r", ClientKind.HTTP, NAMES, num_bytes=0, taken_at=0.0)
    return guard.parse(pending, {"body": b'{"type": "open"}'}, read)


@pytest.mark.parametrize("name", ["Origin", "origin"])
@pytest.mark.parametrize("origin", [PAGE, "null", "http://127.0.0.1:8080", "", "x" * 10_000])
def test_pages_are_refused(name: str, origin: str) -> None:
    """Also pages without an origin, and those that claim to come from this server: it has none."""
    with pytest.raises(InvalidRequest, match="allowedOrigins") as caught:
        parse({name: origin}, "https://other.example.com")
    assert caught.value.field == "origin"
    assert len(caught.value.message) < 300


@pytest.mark.parametrize("allowed", [PAGE, "*"])
def test_pages_of_allowed_origins_are_served(allowed: str) -> None:
    """By their exact origins, or all of them."""
    assert isinstance(parse({"Origin": PAGE}, "https://other.example.com", allowed), Submit)


def test_other_clients_are_served() -> None:
    """They send no origin, and a part of the body cannot pose as one."""
    assert isinstance(parse({}), Submit)
    assert isinstance(parse({"Origin": {"content-type": "text/plain"}}), Submit)


def test_over_grpc_there_are_no_pages() -> None:
    """An input of that name is refused as every unknown one."""
    assert RequestHeaders.read({"origin": PAGE}, NAMES, minting=False).origin is None
