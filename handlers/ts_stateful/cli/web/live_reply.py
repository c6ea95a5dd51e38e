"""A reply while it comes. It is read on a thread of its own, so it goes on if its page is closed."""

from __future__ import annotations

import threading
from collections.abc import Iterator

from ts_stateful.cli.chat.talk import Exchange
from ts_stateful.client import Reply, Session
from ts_stateful.clock import SYSTEM_CLOCK, Clock
from ts_stateful.protocol.answers import Timing, Usage

__all__ = ["Continuation", "LiveReply"]

_CANCEL_S = 5.0
_WAIT_MS = 1000
_PAUSE_S = 0.02


class Continuation:
    """The reply of a turn that an earlier page has begun; see `Reply`."""

    def __init__(self, session: Session, turn: int, clock: Clock = SYSTEM_CLOCK) -> None:
        self._session = session
        self._clock = clock
        self.turn = turn
        self.text = ""
        self.finish_reason: str | None = None
        self.usage: Usage | None = None
        self.timing: Timing | None = None

    def __iter__(self) -> Iterator[str]:
        while self.finish_reason is None:
            event = self._session.continue_(self.turn, len(self.text), wait_ms=_WAIT_MS)
            self.text += event.text
            self.finish_reason, self.usage, self.timing = (
                event.finish_reason,
                event.usage,
                event.timing,
            )
            yield event.text
            if not event.text:  # not every server waits
                self._clock.sleep(_PAUSE_S)

    def cancel(self, timeout_s: float) -> None:
        """See `Reply.cancel`."""
        self._session.cancel(timeout_s)


class LiveReply:
    """The turn in progress: what was asked, and the text so far. `error` is what it failed of."""

    def __init__(self, prompt: str, files: tuple[str, ...]) -> None:
        self.prompt = prompt
        self.files = files
        self.text = ""
        self.turn: int | None = None
        self.exchange: Exchange | None = None  # at its end
        self.error: Exception | None = None
        self.is_cancelled = False
        self._ended = threading.Event()

    @property
    def has_ended(self) -> bool:
        """Return True if nothing more comes."""
        return self._ended.is_set()

    def wait(self, timeout_s: float) -> bool:
        """Wait for the end; return True if it has come."""
        return self._ended.wait(timeout_s)

    def cancel(self) -> None:
        """End the turn at its next piece."""
        self.is_cancelled = True

    def read(self, reply: Reply | Continuation) -> None:
        """Read a reply to its end.

        Raises:
            StatefulError, ClientError: see `Session.prompt`.
        """
        is_asked = False
        for piece in reply:
            self.text += piece
            if self.is_cancelled and not is_asked:
                is_asked = True
                reply.cancel(_CANCEL_S)
        self.turn = reply.turn
        self.exchange = Exchange(
            self.prompt, reply.text, self.files, reply.finish_reason, reply.usage, reply.timing
        )

    def end(self, error: Exception | None = None) -> None:
        """Wake those that wait for the end."""
        self.error = error
        self._ended.set()
