"""Replies: the pieces of a turn's text as they come, and its usage and timing at the end.

A turn is pushed or pulled, and resumed if a stream breaks. Characters are counted as Python does, in code points.
"""

from __future__ import annotations

import contextlib
from collections.abc import Generator, Iterator

import msgspec

from ts_stateful.client.documents import parse
from ts_stateful.client.errors import ClientError, ProtocolError, ServerUnreachable
from ts_stateful.client.open_session import OpenSession
from ts_stateful.protocol.answers import Cancelled, Logprob, Timing, TurnAnswer, Usage
from ts_stateful.protocol.errors import SessionExpired, SessionNotFound, StatefulError, TurnGap
from ts_stateful.protocol.requests import Cancel, Continue, Prompt

__all__ = ["Reply"]

# If a turn has nothing new, the next request waits for a pause that doubles from the first to the last of these. The
# server's own wait is part of the pause.
_FIRST_PAUSE_S = 0.001
_LAST_PAUSE_S = 0.010
# The longest time that the server may hold an answer back until there is something new (async profile).
_WAIT_MS = 1000
# The timeout of each of the two steps in which a turn is given up.
_CLOSE_TIMEOUT_S = 5.0


class Reply(contextlib.AbstractContextManager["Reply"]):
    """The reply to one prompt; iterate over it once for the pieces, or call `result()`.

    Nothing is sent before the first piece is asked for. Leaving the loop early, Ctrl-C and `close()` cancel the turn; the
    text until then stays part of the session. After an error in the middle it does not: the server drops a turn that no
    client resumes.
    """

    def __init__(self, session: OpenSession, command: Prompt, timeout_s: float | None) -> None:
        self.turn: int | None = None
        self.finish_reason: str | None = None
        self.usage: Usage | None = None
        self.timing: Timing | None = None
        self.logprobs: list[Logprob] = []  # of the tokens so far, if they were asked for
        self.replayed = False
        self._session = session
        self._calls = session.calls
        self._command = command
        self._attempts = session.calls.attempts(timeout_s)
        self._timeout_s = timeout_s
        self._may_reopen = session.opening is not None
        self._may_renumber = False
        self._pieces: list[str] = []
        self._num_chars = 0
        # Characters and tokens that come once more, since the turn was begun again.
        self._known = self._known_tokens = 0
        self._events: Generator[TurnAnswer, None, None] | None = None
        self._pulls = False
        self._given_up = False
        self._over = False

    @property
    def text(self) -> str:
        """Return the text so far; after the loop, the whole reply."""
        return "".join(self._pieces)

    @property
    def session_id(self) -> str:
        """Return the id of the turn's session."""
        return str(self._command.session_id)

    def __iter__(self) -> Iterator[str]:
        try:
            while not self._over:
                if piece := self._advance():
                    yield piece
        except (GeneratorExit, KeyboardInterrupt):
            self.close()
            raise
        finally:
            if not self._over:  # after any error, also of a signal handler
                self._end()

    def result(self) -> str:
        """Wait for the end of the turn and return its whole text."""
        with self:
            for _ in self:
                pass
        return self.text

    def cancel(self, timeout_s: float | None = None) -> None:
        """End the turn; the loop goes on to the end of its text, with `finish_reason` "cancelled".

        `timeout_s` is by default the connection's. If the turn is over, or the session has a later one, nothing is sent.
        """
        is_latest = self._session.num_turns in (self.turn, None)
        if is_latest and self.turn is not None and not self._over:
            self._calls.call(Cancel(session_id=self.session_id), Cancelled, timeout_s)

    def close(self) -> None:
        """Cancel the turn if it has not ended, and read its text until then.

        Raises nothing: if the server does not answer in time, it will find out that its client has left. A turn of the
        sequence profile cannot be interrupted, so this may wait for some seconds.
        """
        if self._over or self.turn is None:
            self._over = True
            return
        self._given_up = True  # a turn that the server does not have is not begun now
        try:
            with contextlib.suppress(ClientError, StatefulError):
                self.cancel(_CLOSE_TIMEOUT_S)
                self._drop_events()
                self._pulls = True
                self._attempts = self._calls.attempts(_CLOSE_TIMEOUT_S)
                while self.finish_reason is None:
                    self._advance()
        finally:  # also after another Ctrl-C
            self._end()

    def __exit__(self, *_: object) -> None:
        self.close()

    def _advance(self) -> str:
        """Return the next piece, which may be empty; after the last one the reply is over."""
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
            # Pull only what is missing. Without any text so far, the prompt may not even have arrived.
            self._pulls = self._pulls or self._num_chars > 0
            # Also if a repetition broke off: pulled text begins after the known text.
            self._known = self._known_tokens = 0
            if not self._goes_on_after(error):
                self._attempts.wait_after(error)
            return ""

    def _begin(self) -> None:
        self._attempts = self._calls.attempts(self._timeout_s)
        try:
            self._number()
        except (ClientError, StatefulError) as error:
            if not self._reopened_after(error):
                raise

    def _number(self) -> None:
        self._may_renumber = self._session.num_turns is None
        self.turn = self._session.next_turn(self._attempts.deadline.remaining_s())

    def _goes_on_after(self, error: Exception) -> bool:
        return not self._given_up and (
            self._reopened_after(error)
            or self._begun_again_after(error)
            or self._renumbered_after(error)
            or (self._session.uploads.lost(error) and self._may_try_again())
        )

    def _reopened_after(self, error: Exception) -> bool:
        """Open a lost session again, once in a turn and only before its text; return False otherwise."""
        is_lost = isinstance(error, SessionExpired | SessionNotFound)
        if not self._may_reopen or self._num_chars or not is_lost:
            return False
        self._may_reopen = False
        self._session.reopen(self.session_id, self._attempts.deadline.remaining_s())
        self._command = msgspec.structs.replace(self._command, session_id=self._session.session_id)
        self._number()
        self._pulls = False
        return True

    def _begun_again_after(self, error: Exception) -> bool:
        """Ask for the turn again if the engine that worked on it is lost; return False otherwise.

        The turn gives the same text, of which the beginning may be known.
        """
        is_lost = isinstance(error, TurnGap) and self._pulls
        if not is_lost or not self._may_try_again():
            return False
        self._pulls = False
        self._pieces = [self.text]
        self._known, self._known_tokens = self._num_chars, len(self.logprobs)
        return True

    def _renumbered_after(self, error: Exception) -> bool:
        """Number the turn again, once, if the number came from `info` and counted a turn that the server has dropped."""
        if not isinstance(error, TurnGap) or not self._may_renumber or self._num_chars:
            return False
        self._session.forget_turns()
        self._number()
        self._may_renumber = False
        return True

    def _may_try_again(self) -> bool:
        self._attempts.num_failures += 1
        return self._attempts.num_failures <= self._calls.policy.max_retries

    def _take(self, event: TurnAnswer) -> str:
        self._attempts.succeeded()
        text, known_text = event.text[self._known :], event.text[: self._known]
        if known_text and not self.text.startswith(known_text, self._num_chars - self._known):
            raise ProtocolError("the server began the turn again with another text")
        self._known -= len(event.text) - len(text)
        tokens = event.logprobs or ()
        self.logprobs += tokens[self._known_tokens :]
        self._known_tokens -= min(self._known_tokens, len(tokens))
        self._pieces.append(text)
        self._num_chars += len(text)
        if event.finish_reason is not None:
            self.finish_reason = event.finish_reason
            self.usage, self.timing = event.usage, event.timing
            self.replayed = self.replayed or event.replayed
            self._end()
        elif event.more and not self._pulls:
            self._drop_events()
            self._pulls = True  # the rest is pulled
            self._known = self._known_tokens = 0
        elif event.more is False:
            raise ProtocolError("the last answer of a turn does not name how the turn ended")
        return text

    def _push(self) -> Generator[TurnAnswer, None, None]:
        """Yield the events that the server sends unasked, from the beginning of the turn."""
        numbered = msgspec.structs.replace(self._command, turn=self.turn)
        command = self._session.uploads.carried(numbered, self._attempts)
        if not command.stream:
            body = self._calls.ask(command, self._attempts.deadline)
            yield parse(body, TurnAnswer, self.session_id)
            return
        transport, timeout_s = self._calls.transport, self._attempts.deadline.remaining_s()
        with contextlib.closing(
            transport.stream(command, timeout_s, self._calls.policy.stall_s)
        ) as stream:
            for body in stream:
                yield parse(body, TurnAnswer, self.session_id)
                self._attempts.deadline.remaining_s()

    def _pull(self) -> Generator[TurnAnswer, None, None]:
        """Ask for the rest of the turn again and again.

        One request at a time: the server holds it until there is something new. It would answer a second one by the same event
        with the same text.
        """
        clock, pause_s = self._calls.policy.clock, 0.0
        assert self.turn is not None
        while True:
            asked_at = clock.monotonic()
            command = Continue(
                session_id=self.session_id, turn=self.turn, after=self._num_chars, wait_ms=_WAIT_MS
            )
            body = self._calls.ask(command, self._attempts.deadline)
            yield (event := parse(body, TurnAnswer, self.session_id))
            if event.text:
                pause_s = 0.0
                continue
            pause_s = min(_LAST_PAUSE_S, max(_FIRST_PAUSE_S, 2 * pause_s))
            rest_s = pause_s - (clock.monotonic() - asked_at)
            if rest_s > 0:
                clock.sleep(rest_s)

    def _drop_events(self) -> None:
        events, self._events = self._events, None
        if events is not None:
            events.close()

    def _end(self) -> None:
        self._over = True
        self._drop_events()
        if self.finish_reason is None:
            self._session.forget_turns(self.turn)
