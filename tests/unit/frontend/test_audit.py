"""The audit log: which requests have lines, and what is in them."""

from __future__ import annotations

import hashlib
import json
import logging
from typing import Any

import pytest
from msgspec import structs

from tests.support.clock import FakeClock
from ts_stateful.frontend.audit import AuditLog, Trace
from ts_stateful.protocol.events import Event, EventKind, Submit
from ts_stateful.protocol.requests import Close, Fork, Hello, Info, Open, Prompt

_OPENED = Event("r", EventKind.LAST, session_id="s", opened_until=1)
_ANSWER = Event("r", EventKind.LAST, session_id="s")
_CLOSED = structs.replace(_ANSWER, closed=True)
_ADOPTED = Event("r", EventKind.ADOPTED, session_id="s")


def trace(command: Any, *events: Event, **fields: Any) -> Trace:
    made = Trace.of(Submit("r", command, **fields))
    for event in events:
        made.note(event)
    return made


@pytest.mark.parametrize(
    ("course", "status", "verbs"),
    [
        (trace(Open(session_id="s"), _OPENED), 200, ["open"]),
        (trace(Open(session_id="s"), _ANSWER), 409, ["open"]),
        (trace(Prompt(session_id="s", prompt="x"), _OPENED), 200, ["open"]),
        (trace(Prompt(session_id="s", prompt="x"), _OPENED, ephemeral=True), 200, []),
        (trace(Prompt(session_id="s", prompt="x"), _ANSWER), 200, []),
        (trace(Prompt(session_id="s", prompt="x"), _ANSWER), 429, ["refuse"]),
        (trace(Prompt(session_id="s", prompt="x"), _ADOPTED, _ANSWER), 200, ["adopt"]),
        (trace(Fork(session_id="s", new_session_id="f"), _OPENED), 200, ["fork"]),
        (trace(Fork(session_id="s", new_session_id="f"), _ADOPTED), 404, ["adopt", "fork"]),
        (trace(Close(session_id="s"), _CLOSED), 200, ["close"]),
        (trace(Info(session_id="s"), _ANSWER), 404, []),
        (trace(Hello(), _ANSWER), 200, []),
        (Trace(), 401, ["refuse"]),
        (Trace(), 400, []),
    ],
)
def test_the_course_of_a_request_decides_its_lines(
    course: Trace, status: int, verbs: list[str]
) -> None:
    """A prompt may open a session, a step may end one, any request may bring one from the store."""
    assert course.verbs(status) == verbs


def test_a_line_has_the_principal_a_hash_and_sizes(caplog: pytest.LogCaptureFixture) -> None:
    """As JSON: one object, the same hash on every server."""
    caplog.set_level(logging.WARNING)  # the log's own level wins
    caplog.handler.setLevel(logging.NOTSET)
    log = AuditLog("json", FakeClock())
    course = trace(Open(session_id="s", system="secret"), _OPENED)
    log.write(course, "alice", 200, num_bytes=(10, 20))
    (line,) = _lines(caplog)
    assert json.loads(line) == {
        "time": "2023-11-14T22:13:20Z",
        "verb": "open",
        "principal": "alice",
        "session": hashlib.sha256(b"s").hexdigest()[:16],
        "status": 200,
        "bytes_in": 10,
        "bytes_out": 20,
    }


def test_text_cannot_be_forged_by_a_name(caplog: pytest.LogCaptureFixture) -> None:
    """A principal is quoted; what is missing is a hyphen."""
    log = AuditLog("text", FakeClock())
    log.write(Trace(), None, 401, num_bytes=(0, 5))
    log.write(trace(Close(session_id="s"), _CLOSED), 'a" status=200 \u2028', 410, num_bytes=(1, 2))
    first, second = _lines(caplog)
    assert first == (
        "2023-11-14T22:13:20Z refuse principal=- session=- status=401 bytes_in=0 bytes_out=5"
    )
    name = r'principal="a\" status=200 \u2028" session='
    assert second.startswith(f"2023-11-14T22:13:20Z close {name}")
    assert second.endswith(" status=410 bytes_in=1 bytes_out=2")


def test_it_is_off_by_default(caplog: pytest.LogCaptureFixture) -> None:
    """No line at all."""
    AuditLog().write(trace(Open(session_id="s"), _OPENED), "alice", 200, num_bytes=(1, 2))
    assert not _lines(caplog)


def _lines(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [each.getMessage() for each in caplog.records if each.name == "ts_stateful.audit"]
