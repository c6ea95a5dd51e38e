"""A dispatcher that is a script, and the events of which scripts are made."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ts_stateful.frontend.inbox import Mailbox
from ts_stateful.frontend.intake import Intake
from ts_stateful.frontend.parsing.headers import HeaderNames
from ts_stateful.frontend.parsing.requests import RequestParser
from ts_stateful.protocol.events import Event, EventKind, Submit
from ts_stateful.protocol.profile import Profile

ID = "ts_request_sequence_id"
START = "ts_request_sequence_start"
END = "ts_request_sequence_end"
NAMES = HeaderNames(ID, END, frozenset({ID}), frozenset({START}), frozenset({END}))

UNTIL = 1_700_000_000
EXPIRES = "Expires=2023-11-14T22:13:20Z"


class ScriptedDispatcher:
    """Records what is submitted and dropped; `script` gives the events that come at once."""

    def __init__(
        self, mailbox: Mailbox, script: Callable[[Submit], Sequence[Event]] = lambda _: ()
    ) -> None:
        self.mailbox = mailbox
        self.script = script
        self.submitted: dict[str, Submit] = {}
        self.dropped: list[str] = []

    def start(self) -> None:
        """Nothing to start."""

    def submit(self, message: Submit) -> None:
        """Plays the script."""
        assert message.request_id not in self.submitted, "submitted twice"
        self.submitted[message.request_id] = message
        for event in self.script(message):
            self.mailbox.post(event)

    def describe(self, request_id: str) -> None:
        """Says so."""
        self.mailbox.post(last(request_id, {"described": True}))

    def drop(self, request_id: str) -> None:
        """Records it."""
        self.dropped.append(request_id)

    def intake(self, profile: Profile, *, minting: bool = False) -> Intake:
        """An intake in front of this dispatcher."""
        parser = RequestParser(profile, NAMES, new_seed=lambda: 7)
        clock = iter(range(10**6))
        return Intake(
            self, self.mailbox, parser, NAMES, minting=minting, clock=lambda: float(next(clock))
        )


def accepted(request_id: str, **fields: Any) -> Event:
    """The turn runs."""
    return Event(request_id, EventKind.ACCEPTED, **fields)


def part(request_id: str, text: str, **fields: Any) -> Event:
    """A piece of text."""
    return Event(request_id, EventKind.PART, json.dumps({"text": text}).encode(), **fields)


def last(request_id: str, document: Mapping[str, Any] | None = None, **fields: Any) -> Event:
    """The end."""
    return Event(request_id, EventKind.LAST, json.dumps(document or {}).encode(), **fields)


def refused(request_id: str, status: int, **fields: Any) -> Event:
    """An error."""
    return last(request_id, {"error": {"code": "x", "status": status, **fields}}, status=status)
