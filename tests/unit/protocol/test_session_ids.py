"""The strength of ids that clients choose."""

from __future__ import annotations

import uuid

import pytest

from ts_stateful.protocol.errors import InvalidRequest
from ts_stateful.protocol.session_ids import check_strength, new_session_id


@pytest.mark.parametrize(
    "session_id",
    [
        "5f0c6c1a2b3d4e5f60718293a4b5c6d7",
        "5F0C6C1A2B3D4E5F60718293A4B5C6D7",
        str(uuid.UUID(int=0x5F0C6C1A2B3D4E5F60718293A4B5C6D7)),
        f"ts-seq-{uuid.UUID(int=0x5F0C6C1A2B3D4E5F60718293A4B5C6D7)}",
        "3141592653589793238462643383279502884197",
        "bF7_kQ2-zR9xT1mW4vN8yLp3",
    ],
)
def test_ids_like_128_random_bits_are_taken(session_id: str) -> None:
    """Hex, UUIDs, decimal digits, base64; those that the server and TorchServe make."""
    check_strength(session_id)
    check_strength(new_session_id())


@pytest.mark.parametrize(
    "session_id", ["a", "seq_0", "42", "0" * 32, "ab" * 100, "-" * 226, "alice-2026-11-23"]
)
def test_ids_that_can_be_guessed_are_refused(session_id: str) -> None:
    """Too short, or of too few characters; the error names the field and the remedy."""
    with pytest.raises(InvalidRequest, match="clientIds") as refusal:
        check_strength(session_id, "new_session_id")
    assert refusal.value.field == "new_session_id"
