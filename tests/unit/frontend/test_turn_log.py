"""The log of turns."""

from __future__ import annotations

import logging

import pytest

from tests.support.reports import TRACE, answered_turn, pending_request
from ts_stateful.frontend.observer import AnswerReport, Observers
from ts_stateful.frontend.turn_log import TurnLog


def test_a_turn_is_a_line_without_content(caplog: pytest.LogCaptureFixture) -> None:
    """With its request, its trace, a hash of its session, its tokens and its times."""
    log = Observers(TurnLog(), TurnLog())
    with caplog.at_level(logging.INFO, "ts_stateful.turns"):
        log.answered(pending_request(), answered_turn())
        log.answered(pending_request(), AnswerReport(session_id="s"))
        log.dropped(pending_request())
    assert caplog.messages == 2 * [
        f"request=mine trace={TRACE} session=043a718774c572bd turn=2 prompt_tokens=80 cached_tokens=70"
        " tokens=5 queue_ms=2.0 first_token_ms=10.0 total_ms=50.0 finish=stop"
    ]
    assert caplog.records[0].fields["cached_tokens"] == 70  # type: ignore[attr-defined]


def test_what_is_unknown_is_a_dash(caplog: pytest.LogCaptureFixture) -> None:
    """A request without a trace or a session."""
    with caplog.at_level(logging.INFO, "ts_stateful.turns"):
        TurnLog().answered(pending_request(traceparent=None), AnswerReport(finish_reason="length"))
    assert caplog.messages[0].startswith("request=mine trace=- session=- turn=- ")
