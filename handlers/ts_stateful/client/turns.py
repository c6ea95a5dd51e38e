"""Which number the next turn of a session has.

Owns the count. A turn that fails is rolled back by the server, so after a failure the count is asked for again.
"""

from __future__ import annotations

from collections.abc import Callable

from ts_stateful.protocol.answers import SessionInfo

__all__ = ["TurnCounter"]


class TurnCounter:
    """Numbers the turns of one session; `num_turns` counts those committed, in progress and waiting."""

    def __init__(self, ask: Callable[[float], SessionInfo], num_turns: int | None) -> None:
        self._ask = ask
        self._num_turns = num_turns

    def take(self, timeout_s: float) -> int:
        """The number of a new turn; asks the server, within `timeout_s`, where the count is not known."""
        if self._num_turns is None:
            info = self._ask(timeout_s)
            self._num_turns = info.turns + info.running + info.waiting
        self._num_turns += 1
        return self._num_turns

    def reset(self, num_turns: int) -> None:
        """The server has said how many there are."""
        self._num_turns = num_turns

    def forget(self) -> None:
        """A turn has ended in a way that leaves the count open."""
        self._num_turns = None
