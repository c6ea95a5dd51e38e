"""A scripted dispatcher, and events for its scripts."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from random import Random
from typing import Any

from tests.support.clock import FakeClock
from ts_stateful.frontend.inbox import Mailbox
from ts_stateful.frontend.intake import Intake
from ts_stateful.frontend.parsing.headers import HeaderNames, HeaderReader
from ts_stateful.frontend.parsing.requests import RequestParser
from ts_stateful.protocol.events import Event, EventKind, Submit
from ts_stateful.protocol.profile import Profile

ID = "ts_request_sequence_id"
START = "ts_request_sequence_start"
END = "ts_request_sequence_end"
NAMES = HeaderNames(ID, END, frozenset({ID}), frozenset({START}), frozenset({END}))

UNTIL = 1_700_000_000
EXPIRES = "Expires=2023-11-14T22:13:20Z"


class FixedSeeds(Random):
    """A source of one seed."""

    def getrandbits(self, k: int) -> int:
        """Return 7."""
        return 7


class TickingClock(FakeClock):
    """A clock on which every look takes a second."""

    def monotonic(self) -> float:
        """See `Clock`."""
        self.now += 1
        return self.now


class ScriptedDispatcher:
    """A record of submitted and dropped requests; `script` returns the events that come at once."""

    def __init__(
        self, mailbox: Mailbox, script: Callable[[Submit], Sequence[Event]] = lambda _: ()
    ) -> None:
        self.mailbox = mailbox
        self.script = script
        self.submitted: dict[str, Submit] = {}
        self.dropped: list[str] = []
        self.bytes_in_flight = 0
        self.by_principal: dict[str | None, int] = {}

    def start(self) -> None:
        """Do nothing."""

    def submit(self, message: Submit) -> None:
        """Play the script."""
        assert message.request_id not in self.submitted, "submitted twice"
        self.submitted[message.request_id] = message
        for event in self.script(message):
            self.mailbox.post(event)

    def bytes_of(self, principal: str | None) -> int:
        """Return what a test has set."""
        return self.by_principal.get(principal, 0)

    def describe(self, request_id: str) -> None:
        """Answer that it was asked."""
        self.mailbox.post(last(request_id, {"described": True}))

    def drop(self, request_id: str) -> None:
        """Record it."""
        self.dropped.append(request_id)

    def intake(self, profile: Profile, *, minting: bool = False) -> Intake:
        """Return an intake for this dispatcher."""
        parser = RequestParser(profile, NAMES, rng=FixedSeeds())
        headers = HeaderReader(NAMES, minting=minting)
        return Intake(self, self.mailbox, parser, headers, clock=TickingClock())


def accepted(request_id: str, **fields: Any) -> Event:
    """Make the event of a turn that runs."""
    return Event(request_id, EventKind.ACCEPTED, **fields)


def part(request_id: str, text: str, **fields: Any) -> Event:
    """Make the event of a piece of text."""
    return Event(request_id, EventKind.PART, json.dumps({"text": text}).encode(), **fields)


def last(request_id: str, document: Mapping[str, Any] | None = None, **fields: Any) -> Event:
    """Make the last event."""
    return Event(request_id, EventKind.LAST, json.dumps(document or {}).encode(), **fields)


def refused(request_id: str, status: int, **fields: Any) -> Event:
    """Make the event of an error."""
    return last(request_id, {"error": {"code": "x", "status": status, **fields}}, status=status)
