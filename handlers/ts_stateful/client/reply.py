"""A reply while it comes: pieces of text, and what is known once it has ended.

Owns the way of one turn from its prompt to its last event: pushed or pulled, resumed where a stream broke. Knows nothing of
which transport carries it. Characters are counted as Python does, in code points.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Generator, Iterator

import msgspec

from ts_stateful.client.calls import Calls
from ts_stateful.client.documents import parse
from ts_stateful.client.errors import ClientError, ProtocolError, ServerUnreachable
from ts_stateful.client.turns import TurnCounter
from ts_stateful.client.uploads import Carrier
from ts_stateful.protocol.answers import Cancelled, Timing, TurnAnswer, Usage
from ts_stateful.protocol.errors import SessionExpired, SessionNotFound, StatefulError, TurnGap
from ts_stateful.protocol.requests import Cancel, Continue, Prompt

__all__ = ["Reply"]

# A turn that has nothing new is asked for again after a pause that doubles from the first to the last of these. The server's
# own wait is part of the pause.
_FIRST_PAUSE_S = 0.001
_LAST_PAUSE_S = 0.010
# Where the server may hold an answer back until there is something new (async profile).
_WAIT_MS = 1000
# How long giving a turn up may take, each of its two steps.
_CLOSE_TIMEOUT_S = 5.0


class Reply:
    """The reply to one prompt; iterate over it once for the pieces, or take `result()`.

    Nothing is sent before the first piece is asked for. Leaving the loop early, Ctrl-C and `close()` cancel the turn; what
    was generated until then stays part of the session. An error in the middle does not: the server drops a turn
    that nobody comes back for.
    """

    def __init__(
        self,
        calls: Calls,
        turns: TurnCounter,
        command: Prompt,
        timeout_s: float | None,
        carrier: Carrier,
        reopen: Callable[[str, float], str] | None = None,
    ) -> None:
        self.turn: int | None = None
        self.finish_reason: str | None = None
        self.usage: Usage | None = None
        self.timing: Timing | None = None
        self.replayed = False
        self._calls = calls
        self._turns = turns
        self._command = command
        self._attempts = calls.attempts(timeout_s)
        self._timeout_s = timeout_s
        self._carrier = carrier
        self._reopen = reopen  # gives the id of what takes the place of the session that has ended, within so many seconds
        self._pieces: list[str] = []
        self._num_chars = 0
        self._known = 0  # characters that come once more, since the turn was begun anew
        self._events: Generator[TurnAnswer, None, None] | None = None
        self._pulls = False
        self._given_up = False
        self._over = False

    @property
    def text(self) -> str:
        """What has come so far; once the loop has ended, the whole reply."""
        return "".join(self._pieces)

    @property
    def session_id(self) -> str:
        """The session that the turn belongs to."""
        return str(self._command.session_id)

    def __iter__(self) -> Iterator[str]:
        try:
            while not self._over:
                if piece := self._advance():
                    yield piece
        except (GeneratorExit, KeyboardInterrupt):
            self.close()
            raise

    def result(self) -> str:
        """The whole text, once the turn has ended."""
        for _ in self:
            pass
        return self.text

    def cancel(self, timeout_s: float | None = None) -> None:
        """Ends the turn; the loop goes on to the end of what was generated, with `finish_reason` "cancelled".

        Within the connection's timeout, unless another one is given.
        """
        self._calls.call(Cancel(session_id=self.session_id), Cancelled, timeout_s)

    def close(self) -> None:
        """Cancels the turn if it has not ended, and takes in what was generated until then.

        Raises nothing: if the server does not answer in time, it is left to find out that its client is gone. In the sequence
        profile a turn cannot be interrupted, so this may wait for some seconds.
        """
        if self._over or self.turn is None:
            self._over = True
            return
        self._given_up = True  # what the server does not know of is not begun now
        try:
            with contextlib.suppress(ClientError, StatefulError):
                self.cancel(_CLOSE_TIMEOUT_S)
                self._drop_events()
                self._pulls = True
                self._attempts = self._calls.attempts(_CLOSE_TIMEOUT_S)
                while self.finish_reason is None:
                    self._advance()
        finally:  # also behind another Ctrl-C
            self._end()

    def __enter__(self) -> Reply:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _advance(self) -> str:
        """The next piece, which may be empty; after the last one the reply is over."""
        if self.turn is None:
            self._begin()
        try:
            if self._events is None:
                self._events = self._pull() if self._pulls else self._push()
            event = next(self._events, None)
            if event is None:
                raise ServerUnreachable("the stream ended before its last event")
            return self._take(event)
        except (ClientError, StatefulError) as error:
            self._drop_events()
            # What has come is not asked for again; without any of it, the prompt may not even have arrived.
            self._pulls = self._pulls or self._num_chars > 0
            self._known = 0  # also where a repetition broke off: what is behind is asked for
            try:
                if not self._goes_on_after(error):
                    self._attempts.wait_after(error)
            except (ClientError, StatefulError):
                self._end()
                raise
            return ""

    def _begin(self) -> None:
        self._attempts = self._calls.attempts(self._timeout_s)
        try:
            self.turn = self._turns.take(self._attempts.deadline.remaining_s())
        except (ClientError, StatefulError) as error:
            self._over = True
            if not self._reopened_after(error):
                raise
            self._over = False

    def _goes_on_after(self, error: Exception) -> bool:
        return not self._given_up and (
            self._reopened_after(error)
            or self._begun_anew_after(error)
            or self._uploads_again_after(error)
        )

    def _reopened_after(self, error: Exception) -> bool:
        """Whether the turn, of which nothing has come, has a session again; once in a turn."""
        gone = isinstance(error, SessionExpired | SessionNotFound)
        if self._reopen is None or self._num_chars or not gone:
            return False
        reopen, self._reopen = self._reopen, None
        session_id = reopen(self.session_id, self._attempts.deadline.remaining_s())
        self._command = msgspec.structs.replace(self._command, session_id=session_id)
        self.turn = self._turns.take(self._attempts.deadline.remaining_s())
        self._pulls = False
        return True

    def _begun_anew_after(self, error: Exception) -> bool:
        """Whether the turn, which had begun, is asked for again: those who worked on it are gone, all of them.

        It gives the same text, of which the beginning may be known.
        """
        lost = isinstance(error, TurnGap) and self._pulls
        if not lost or not self._may_try_again():
            return False
        self._pulls, self._known = False, self._num_chars
        return True

    def _uploads_again_after(self, error: Exception) -> bool:
        """Whether the server had dropped an upload: because others came, or its engine died."""
        return self._carrier.lost(error) and self._may_try_again()

    def _may_try_again(self) -> bool:
        self._attempts.num_failures += 1
        return self._attempts.num_failures <= self._calls.policy.max_retries

    def _take(self, event: TurnAnswer) -> str:
        self._attempts.succeeded()
        text = event.text[self._known :]
        self._known -= len(event.text) - len(text)
        self._pieces.append(text)
        self._num_chars += len(text)
        if event.finish_reason is not None:
            self.finish_reason = event.finish_reason
            self.usage, self.timing = event.usage, event.timing
            self.replayed = self.replayed or event.replayed
            self._end()
        elif event.more and not self._pulls:
            self._drop_events()
            self._pulls, self._known = True, 0  # it is asked for what is behind
        elif event.more is False:
            raise ProtocolError("an answer says that there is no more, but not how the turn ended")
        return text

    def _push(self) -> Generator[TurnAnswer, None, None]:
        """The events that the server sends by itself, from the beginning of the turn."""
        numbered = msgspec.structs.replace(self._command, turn=self.turn)
        command = self._carrier.carried(numbered, self._attempts)
        if not command.stream:
            yield parse(self._calls.ask(command, self._attempts.deadline), TurnAnswer)
            return
        transport, timeout_s = self._calls.transport, self._attempts.deadline.remaining_s()
        with contextlib.closing(
            transport.stream(command, timeout_s, self._calls.policy.stall_s)
        ) as stream:
            for body in stream:
                yield parse(body, TurnAnswer)
                self._attempts.deadline.remaining_s()

    def _pull(self) -> Generator[TurnAnswer, None, None]:
        """What the turn has produced behind what has come, asked for again and again.

        One request at a time: the server holds it until there is something new, so a second one would be answered by the same
        event with the same text.
        """
        policy, pause_s = self._calls.policy, 0.0
        assert self.turn is not None
        while True:
            asked_at = policy.clock()
            command = Continue(
                session_id=self.session_id,
                turn=self.turn,
                after=self._num_chars,
                wait_ms=_WAIT_MS,
            )
            event = parse(self._calls.ask(command, self._attempts.deadline), TurnAnswer)
            yield event
            if event.text:
                pause_s = 0.0
                continue
            pause_s = min(_LAST_PAUSE_S, max(_FIRST_PAUSE_S, 2 * pause_s))
            rest_s = pause_s - (policy.clock() - asked_at)
            if rest_s > 0:
                policy.sleep(rest_s)

    def _drop_events(self) -> None:
        events, self._events = self._events, None
        if events is not None:
            events.close()

    def _end(self) -> None:
        self._over = True
        self._drop_events()
        if self.finish_reason is None:
            self._turns.forget()
