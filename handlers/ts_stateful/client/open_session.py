"""The part of an open session that its `Session` and its replies share."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from ts_stateful.client.calls import Calls
from ts_stateful.client.images import ImageUploads
from ts_stateful.protocol.answers import Cancelled, Forked, Opened, Rewound, SessionInfo, Usage
from ts_stateful.protocol.errors import SessionExists, SessionNotFound
from ts_stateful.protocol.requests import Cancel, Fork, Info, Media, Open, Rewind
from ts_stateful.protocol.session_ids import new_session_id

__all__ = ["OpenSession", "open_under_new_id"]


class OpenSession:
    """The id of a session, the number of its next turn, and its uploads.

    `opened` is the server's answer to `open` or `fork`; None if the session was attached to. `opening` is the request that
    opens the session again, None if the caller does not want that. `first_media` go with turn 1.
    """

    def __init__(
        self,
        calls: Calls,
        session_id: str,
        opened: Opened | None = None,
        *,
        opening: Open | None = None,
        first_media: Sequence[Media] = (),
    ) -> None:
        self.calls = calls
        self.session_id = session_id
        self.opened = opened
        self.opening = opening
        self.num_reopened = 0
        self.uploads = ImageUploads(calls, first_media)
        # Committed, in progress or waiting; None: ask the server.
        self.num_turns: int | None = None
        self._abandoned: int | None = None
        if opened is not None:
            self.num_turns = opened.turn if isinstance(opened, Forked) else 0

    def info(self, timeout_s: float | None = None) -> SessionInfo:
        """Ask the server about the session."""
        return self.calls.call(Info(session_id=self.session_id), SessionInfo, timeout_s)

    def next_turn(self, timeout_s: float) -> int:
        """Number a new turn; ask the server, within `timeout_s`, if the count is not known."""
        if self.num_turns is None:
            info = self.info(timeout_s)
            if info.running and not info.waiting and info.turns + 1 == self._abandoned:
                self._drop(info.turns, timeout_s)
                info = self.info(timeout_s)
            self.num_turns = info.turns + info.running + info.waiting
        self.num_turns += 1
        return self.num_turns

    def _drop(self, num_turns: int, timeout_s: float) -> None:
        """End the turn in progress and drop it: the next one would wait for it, and its client has left."""
        cancelled = self.calls.call(Cancel(session_id=self.session_id), Cancelled, timeout_s)
        if cancelled.cancelled:
            rewind = Rewind(session_id=self.session_id, to_turn=num_turns)
            self.calls.call(rewind, Rewound, timeout_s)

    def forget_turns(self, abandoned: int | None = None) -> None:
        """Drop the count: the server rolls a failed turn back, and turn `abandoned` may be in progress."""
        self.num_turns, self._abandoned = None, abandoned

    def reopen(self, lost_id: str, timeout_s: float) -> None:
        """Open the session again if `lost_id` is its current id; all replies to a lost id share the new session."""
        assert self.opening is not None
        if lost_id != self.session_id:
            self.forget_turns()  # the reply took a number of the lost session
            return
        self.opened = open_under_new_id(self.calls, self.opening, timeout_s)
        self.session_id = self.opened.session_id
        self.num_reopened += 1
        self.num_turns = 0


def open_under_new_id(calls: Calls, command: Open | Fork, timeout_s: float | None) -> Opened:
    """Open a session under a new id, or fork one.

    The id is made here and not by the server: a request whose answer was lost can be repeated and leaves no second session.
    """
    name = new_session_id()
    field = "new_session_id" if isinstance(command, Fork) else "session_id"
    command = msgspec.structs.replace(command, **{field: name})

    def lost() -> Opened:
        try:
            info = OpenSession(calls, name).info(timeout_s)
        except SessionNotFound:
            # SageMaker does not route to a session whose `open` it has not seen answered.
            return open_under_new_id(calls, command, timeout_s)
        usage = Usage(prompt_tokens=info.tokens)
        if isinstance(command, Fork):
            return Forked(name, info.expires_at, usage, command.session_id or "", info.turns)
        return Opened(name, info.expires_at, usage)

    answer = Forked if isinstance(command, Fork) else Opened
    return calls.call(command, answer, timeout_s, applied=(SessionExists, lost))
