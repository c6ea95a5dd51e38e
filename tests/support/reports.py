"""Answered requests, as observers get them."""

from __future__ import annotations

from ts_stateful.frontend.observer import AnswerReport, report_of
from ts_stateful.frontend.parsing.correlation import Correlation
from ts_stateful.frontend.parsing.headers import HeaderNames
from ts_stateful.frontend.pending_response import ClientKind, PendingResponse

__all__ = ["TRACE", "TRACEPARENT", "answered_turn", "pending_request"]

TRACE = "0af7651916cd43dd8448eb211c80319c"
TRACEPARENT = f"00-{TRACE}-b7ad6b7169203331-01"
_NAMES = HeaderNames("id", "end", frozenset({"id"}), frozenset(), frozenset())


def pending_request(
    taken_at: float = 0.0, traceparent: str | None = TRACEPARENT
) -> PendingResponse:
    """Return a request that its client calls `mine`."""
    pending = PendingResponse("r", ClientKind.HTTP, _NAMES, taken_at=taken_at)
    pending.known = Correlation("mine", traceparent)
    return pending


def answered_turn() -> AnswerReport:
    """Return the second turn of a session, of 80 tokens, of which 70 are cached, and 5 more."""
    return report_of(
        b"""{"text": "red", "session_id": "s", "turn": 2, "finish_reason": "stop",
        "usage": {"prompt_tokens": 80, "completion_tokens": 5, "prompt_tokens_details": {"cached_tokens": 70}},
        "timing": {"queue_ms": 2.0, "first_token_ms": 10.0, "total_ms": 50.0, "restored_from": "store"}}"""
    )
