"""The log of turns: a line for each."""

from __future__ import annotations

import logging

from ts_stateful.frontend.audit import shortened
from ts_stateful.frontend.observer import AnswerReport
from ts_stateful.frontend.pending_response import PendingResponse

__all__ = ["TurnLog"]

logger = logging.getLogger("ts_stateful.turns")


class TurnLog:
    """One line for each turn at INFO; in JSON its values are fields. An `Observer`."""

    def answered(self, pending: PendingResponse, report: AnswerReport) -> None:
        """See `Observer`."""
        is_turn = report.finish_reason is not None and not report.replayed
        if not is_turn or not logger.isEnabledFor(logging.INFO):
            return
        usage, timing = report.usage, report.timing
        fields = {
            "request": pending.known.request_id,
            "trace": pending.known.trace_id,
            "session": shortened(report.session_id),
            "turn": report.turn,
            "prompt_tokens": usage.prompt_tokens,
            "cached_tokens": usage.prompt_tokens_details.cached_tokens,
            "tokens": usage.completion_tokens,
            "queue_ms": round(timing.queue_ms, 1),
            "first_token_ms": round(timing.first_token_ms, 1),
            "total_ms": round(timing.total_ms, 1),
            "finish": report.finish_reason,
        }
        pairs = (f"{name}={'-' if value is None else value}" for name, value in fields.items())
        logger.info("%s", " ".join(pairs), extra={"fields": fields})

    def dropped(self, pending: PendingResponse) -> None:
        """See `Observer`."""
