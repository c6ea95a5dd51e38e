"""Internal session ids."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ts_stateful.protocol.errors import InvalidRequest
from ts_stateful.protocol.session_ids import check_session_id
from ts_stateful.protocol.tenants import check_principal, internal_id, tenant_of
from ts_stateful.store.base import check_key

_NAMES = st.text(st.characters(categories=("L", "N", "P", "S")), min_size=1, max_size=256)
_IDS = st.from_regex(r"[A-Za-z0-9_-]{1,226}", fullmatch=True)


@given(_NAMES, _IDS)
def test_an_internal_id_is_an_id_and_a_key(principal: str, session_id: str) -> None:
    """For any principal, whatever the length of the client's id."""
    made = internal_id(check_principal(principal), session_id)
    assert check_session_id(made) == made
    assert check_key(f"sessions/{made}/00000001")
    assert len(made) == 97
    assert made.startswith(f"{tenant_of(made)}.")


@given(_NAMES, _NAMES, _IDS, _IDS)
def test_two_principals_or_two_ids_never_share_one(a: str, b: str, x: str, y: str) -> None:
    """Not even if the names run into each other."""
    assert (internal_id(a, x) == internal_id(b, y)) == ((a, x) == (b, y))
    assert (tenant_of(internal_id(a, x)) == tenant_of(internal_id(b, y))) == (a == b)


def test_an_id_of_a_client_has_no_tenant() -> None:
    """Without principals."""
    assert [tenant_of(name) for name in ("a", "0" * 32, "ts-seq-1", "x.y")] == [None] * 4


@pytest.mark.parametrize("name", ["", " ", "a ", " a", "a\n", "a\rb", "\x7f", "a" * 257, "\u200b"])
def test_a_principal_is_a_line_of_text(name: str) -> None:
    """It stands in the audit log."""
    with pytest.raises(InvalidRequest):
        check_principal(name)
