"""Requests to an engine for the Responses API: turns that are found again by session and number, and branch."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

from msgspec import Meta

from ts_stateful.protocol.answers import TurnAnswer
from ts_stateful.protocol.chat import Chat
from ts_stateful.protocol.requests import Command

__all__ = ["Discard", "Recall", "Recalled", "Respond"]

_Turn = Annotated[int, Meta(ge=1, le=2**31)]


class Respond(Chat, frozen=True, tag="respond", kw_only=True):
    """One turn, whose `messages` and `images` are new, after turn `after` of its session; None is the last one.

    If the session has gone on since, or the request `forks` it, it stays, and the turn is made in `new_session_id`, its fork.
    `instructions` are the system prompt of this turn alone. A turn that does not `generate` adds its messages, without a
    reply. `note` is kept with the turn, for `Recall`; the engine does not read it. In the `background` the turn goes on
    without a client.
    """

    after: Annotated[int, Meta(ge=0, le=2**31)] | None = 0
    new_session_id: str | None = None
    forks: bool = False
    instructions: str = ""
    generates: bool = True
    note: str = ""
    background: bool = False


class Recall(Command, frozen=True, tag="recall", kw_only=True):
    """A request for a turn that was made by `Respond`, as a `stream` if it is to be; `turn` None is the last one.

    `cancels` ends it first if it is in progress. `all` asks for the turns before it, too.
    """

    turn: _Turn | None
    stream: bool = False
    cancels: bool = False
    all: bool = False


class Discard(Command, frozen=True, tag="discard", kw_only=True):
    """A request to forget the note of a turn. Turns at the end without a note are removed, and so is a session without any."""

    turn: _Turn


class Recalled(TurnAnswer, frozen=True, kw_only=True, omit_defaults=True):
    """Answer to `Recall`: the turn, without a `finish_reason` while it is in progress, and its note."""

    note: str
    earlier: Sequence[Recalled] = ()
