"""The audit log of a server with principals."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.support.fronted import FrontedEngine
from tests.support.store_engines import FailingStore
from tests.support.tiny import llava
from ts_stateful.frontend.audit import AuditLog

_ID = "session-of-alice"


def test_every_open_close_fork_adoption_and_refusal_has_a_line(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """With the same hash for a session at every server, and never a text."""
    model, store = llava(), FailingStore()
    first, second = (FrontedEngine(model, store, audit=AuditLog("json")) for _ in range(2))
    secret = "an embarrassing question"
    first.ask("alice", {"type": "open", "session_id": _ID, "system": secret})
    first.ask("alice", {"prompt": secret, "session_id": _ID, "max_new_tokens": 1})
    second.ask("alice", {"type": "info", "session_id": _ID})
    second.ask("alice", {"type": "fork", "session_id": _ID, "new_session_id": "fork"})
    second.ask("bob", {"type": "close", "session_id": _ID})
    second.ask("alice", {"type": "close", "session_id": _ID})
    second.ask(None, {"prompt": secret})
    lines = [json.loads(r.getMessage()) for r in caplog.records if r.name == "ts_stateful.audit"]
    shown = [(line["verb"], line["principal"], line["status"]) for line in lines]
    assert shown == [
        ("open", "alice", 200),
        ("adopt", "alice", 200),
        ("fork", "alice", 200),
        ("close", "bob", 404),
        ("close", "alice", 200),
        ("refuse", None, 401),
    ]
    sessions: list[Any] = [line["session"] for line in lines]
    assert sessions[0] == sessions[1] == sessions[4]
    assert len({*sessions}) == 4  # the fork, bob's own id, and none
    assert all(line["bytes_in"] > 0 and line["bytes_out"] > 0 for line in lines)
    assert not any(text in caplog.text for text in (secret, _ID))
