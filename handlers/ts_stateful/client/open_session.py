"""The part of an open session that its `Session` and its replies share."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from ts_stateful.client.calls import Calls
from ts_stateful.client.uploads import ImageUploads
from ts_stateful.protocol.answers import Forked, Opened, SessionInfo
from ts_stateful.protocol.requests import Info, Media, Open
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
        self._num_turns: int | None = (
            None  # committed, in progress or waiting; None: ask the server
        )
        if opened is not None:
            self._num_turns = opened.turn if isinstance(opened, Forked) else 0

    def info(self, timeout_s: float | None = None) -> SessionInfo:
        """Ask the server about the session."""
        return self.calls.call(Info(session_id=self.session_id), SessionInfo, timeout_s)

    def next_turn(self, timeout_s: float) -> int:
        """Number a new turn; ask the server, within `timeout_s`, if the count is not known."""
        if self._num_turns is None:
            info = self.info(timeout_s)
            self._num_turns = info.turns + info.running + info.waiting
        self._num_turns += 1
        return self._num_turns

    def rewound(self, num_turns: int) -> None:
        """Count on from the number of turns that the server has reported."""
        self._num_turns = num_turns

    def forget_turns(self) -> None:
        """Drop the count: the server rolls a failed turn back."""
        self._num_turns = None

    def reopen(self, lost_id: str, timeout_s: float) -> None:
        """Open the session again if `lost_id` is its current id; all replies to a lost id share the new session."""
        assert self.opening is not None
        if lost_id != self.session_id:
            self._num_turns = None  # the reply took a number of the lost session
            return
        self.opened = open_under_new_id(self.calls, self.opening, timeout_s)
        self.session_id = self.opened.session_id
        self.num_reopened += 1
        self._num_turns = 0


def open_under_new_id(calls: Calls, command: Open, timeout_s: float | None) -> Opened:
    """Send an `open` again with another session id."""
    again = msgspec.structs.replace(command, session_id=new_session_id())
    return calls.call(again, Opened, timeout_s)
