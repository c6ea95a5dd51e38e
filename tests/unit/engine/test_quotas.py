"""Quotas of one engine: their owners, and the share of one of several engines."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.clock import FakeClock
from ts_stateful.config.schema import load_config
from ts_stateful.engine.quotas import Quotas, TokenBucket
from ts_stateful.protocol.errors import QuotaExceeded
from ts_stateful.protocol.events import Submit
from ts_stateful.protocol.requests import Prompt
from ts_stateful.protocol.tenants import internal_id, tenant_of

_HEADER = {"mode": "header", "header": "X-P"}
ALICE, BOB = internal_id("alice", "s"), internal_id("bob", "s")


def quotas(max_sessions: int = 8, *, auth: Any = _HEADER, **keys: Any) -> Quotas:
    """Return the quotas of an engine with so many of eight sessions."""
    handler = {"model": "m", "auth": auth, "quotas": keys}
    config = load_config({"maxNumSequence": 8, "handler": handler})
    return Quotas(config, max_sessions, FakeClock())


def _prompt(session_id: str) -> Submit:
    return Submit("r", Prompt(session_id=session_id, prompt="hi"))


def test_an_owner_is_a_principal_and_never_what_a_client_claims() -> None:
    """Without principals an id in the form of an internal one belongs to all clients."""
    with_principals, without = quotas(), quotas(auth="none")
    assert with_principals.owner_of(ALICE) == tenant_of(ALICE) != with_principals.owner_of(BOB)
    assert without.owner_of(ALICE) is None


@pytest.mark.parametrize(
    ("most", "shares"), [(1, [1, 1]), (2, [1, 1]), (3, [2, 2]), (7, [3, 5]), (100, [38, 63])]
)
def test_engines_share_the_open_sessions(most: int, shares: list[int]) -> None:
    """By their share of all sessions, rounded up; an engine without others has all."""
    sizes = [3, 5] if most > 3 else [4, 4]
    assert [quotas(size, openSessions=most).max_sessions(None) for size in sizes] == shares
    assert quotas(openSessions=most).max_sessions(None) == most


def test_a_principal_is_found_by_its_name() -> None:
    """Its own quota counts, and for the others those of all."""
    made = quotas(openSessions=2, principals={"alice": {"openSessions": 5, "parkedSessions": 3}})
    owners = [made.owner_of(session_id) for session_id in (ALICE, BOB)]
    assert [made.max_sessions(owner) for owner in owners] == [5, 2]
    assert [made.max_parked(owner) for owner in owners] == [3, 10_000]
    assert quotas().max_sessions(owners[0]) is None


def test_only_those_with_a_quota_of_tokens_spend_them() -> None:
    """And each has tokens of its own."""
    made = quotas(principals={"alice": {"tokensPerMinute": 60}})
    for session_id in (ALICE, BOB):
        made.spend(made.owner_of(session_id), 70)
    made.check_turn(_prompt(BOB), [])
    with pytest.raises(QuotaExceeded) as caught:
        made.check_turn(_prompt(ALICE), [])
    assert caught.value.field == "handler.quotas.tokensPerMinute"
    assert caught.value.retry_after_s == 11.0


def test_a_minutes_tokens_may_come_at_once() -> None:
    """After them it is empty until the rate has brought one."""
    clock = FakeClock()
    bucket = TokenBucket(120, clock)
    assert bucket.wait_s() == 0
    bucket.take(120)
    assert bucket.wait_s() == 0.5
    clock.now += 0.25
    assert bucket.wait_s() == 0.25
    clock.now += 0.25
    assert bucket.wait_s() == 0


def test_a_debt_is_waited_for() -> None:
    """A turn that took more than there was."""
    clock = FakeClock()
    bucket = TokenBucket(60, clock)
    bucket.take(160)
    assert bucket.wait_s() == 101


def test_a_pause_saves_up_a_minute_at_most() -> None:
    """And no more."""
    clock = FakeClock()
    bucket = TokenBucket(60, clock)
    clock.now += 3600
    bucket.take(60)
    assert bucket.wait_s() == 1


@given(
    st.integers(1, 10**6),
    st.lists(st.tuples(st.floats(0, 100), st.integers(0, 10**6)), max_size=20),
)
def test_the_wait_is_true(per_minute: int, spent: list[tuple[float, int]]) -> None:
    """After exactly that time there is a token, and shortly before there is none."""
    clock = FakeClock()
    bucket = TokenBucket(per_minute, clock)
    for pause, tokens in spent:
        clock.now += pause
        bucket.take(tokens)
    wait_s = bucket.wait_s()
    if wait_s > 0.01:
        clock.now += wait_s * 0.999
        assert bucket.wait_s() > 0
        clock.now += wait_s * 0.001 + 1e-6 * (1 + wait_s)
        assert bucket.wait_s() == 0
