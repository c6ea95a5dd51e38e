"""From what happens in an engine to the events that its worker gets.

Owns the documents of answers and which request gets which. Knows nothing of models; decides nothing.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from ts_stateful.engine.outbox import Outbox
from ts_stateful.language.conversation.turn import Sequence, Subscriber
from ts_stateful.protocol.answers import (
    Opened,
    Timing,
    TokenDetails,
    TurnAnswer,
    TurnPart,
    Usage,
    encode,
)
from ts_stateful.protocol.errors import StatefulError
from ts_stateful.protocol.events import Event, EventKind
from ts_stateful.protocol.requests import Prompt
from ts_stateful.sessions.session import Session, Turn

__all__ = ["Outbox", "usage_of"]

_TELL = 8  # ids of an unstreamed reply of which the worker is told at once


class TurnOutbox(Outbox):
    """Emits the events of turns; of one stream, text is sent at most every `stream_interval_s` seconds."""

    def __init__(
        self,
        emit: Callable[[Event], None],
        clock: Callable[[], float],
        utc: Callable[[], float] = time.time,
        stream_interval_s: float = 0.0,
    ) -> None:
        super().__init__(emit, clock, utc)
        self._stream_interval_s = stream_interval_s

    def accepted(self, sequence: Sequence, subscriber: Subscriber) -> None:
        """The turn runs; a pulling client gets what there is, and leaves."""
        fields = self._session_fields(sequence)
        if not subscriber.pull:
            self._emit(Event(subscriber.request_id, EventKind.ACCEPTED, **fields))
            return
        text = sequence.text
        document = TurnAnswer(
            text=text,
            session_id=sequence.session.session_id,
            turn=sequence.number,
            next=len(text),
            more=True,
        )
        self.answer(subscriber.request_id, document, more=True, **fields)

    def progress(self, sequence: Sequence) -> None:
        """The reply may have grown: streams get the new piece, `continue`s that have waited for it are answered."""
        text, now = sequence.text, self._clock()
        for subscriber in sequence.subscribers:
            if subscriber.stream and len(text) > subscriber.sent and now >= subscriber.next_at:
                piece = text[subscriber.sent :]
                subscriber.sent = len(text)
                subscriber.next_at = now + self._stream_interval_s
                ids, subscriber.acked = _unacked(sequence, subscriber), sequence.num_generated
                self._emit(
                    Event(
                        subscriber.request_id,
                        EventKind.PART,
                        encode(TurnPart(piece)),
                        num_chars=len(piece),
                        token_ids=ids,
                        **self._session_fields(sequence),
                    )
                )

        for subscriber in (*sequence.subscribers, *sequence.pulled):
            if not subscriber.stream and sequence.num_generated - subscriber.acked >= _TELL:
                self._tell(sequence, subscriber)

    def tell(self, sequence: Sequence) -> None:
        """Somebody is about to see the text: what is chosen by now must stay so."""
        for subscriber in sequence.pulled:
            if sequence.num_generated > subscriber.acked:
                self._tell(sequence, subscriber)

    def _tell(self, sequence: Sequence, subscriber: Subscriber) -> None:
        ids, subscriber.acked = _unacked(sequence, subscriber), sequence.num_generated
        self._emit(Event(subscriber.request_id, EventKind.PROGRESS, token_ids=ids))

    def over(self, sequence: Sequence) -> None:
        """The turn has come to its end, whichever."""
        for subscriber in sequence.pulled:
            self._emit(Event(subscriber.request_id, EventKind.OVER))

    def finished(self, sequence: Sequence, turn: Turn) -> None:
        """The turn is committed: everybody who waits for it gets the end."""
        fields = self._session_fields(sequence)
        for subscriber in sequence.subscribers:
            sent = subscriber.sent if subscriber.stream else 0
            extra = {"next": len(turn.text), "more": False} if subscriber.pull else {}
            document = self._turn(sequence.session.session_id, turn, turn.text[sent:], **extra)
            self.answer(subscriber.request_id, document, **fields)
        for waiter in sequence.continues:
            self.continued(waiter.request_id, sequence.session.session_id, turn, waiter.after)

    def reopened(self, request_id: str, session: Session[Any]) -> None:
        """The session was open already when this was asked again."""
        num_tokens = len(session.state.log)
        document = Opened(
            session.session_id,
            self.rfc3339(session.expires_at),
            Usage(prompt_tokens=num_tokens),
        )
        until = self.unix_time(session.expires_at)
        self.answer(request_id, document, session_id=session.session_id, opened_until=until)

    def replayed(
        self,
        subscriber: Subscriber,
        session_id: str,
        turn: Turn,
        *,
        opened_until: int | None = None,
    ) -> None:
        """A turn that was committed before, asked for again."""
        extra = {"next": len(turn.text), "more": False} if subscriber.pull else {}
        text = turn.text[subscriber.sent if subscriber.stream else 0 :]
        document = self._turn(session_id, turn, text, replayed=True, **extra)
        self.answer(
            subscriber.request_id, document, session_id=session_id, opened_until=opened_until
        )

    def continued(self, request_id: str, session_id: str, turn: Turn, after: int) -> None:
        """The rest of a committed turn behind `after` characters."""
        document = self._turn(session_id, turn, turn.text[after:], next=len(turn.text), more=False)
        self.answer(request_id, document, session_id=session_id)

    def partial(self, request_id: str, sequence: Sequence, after: int) -> None:
        """What a turn in progress has produced behind `after` characters."""
        text = sequence.text
        document = TurnAnswer(text=text[after:], next=len(text), more=True)
        self.answer(request_id, document, session_id=sequence.session.session_id)

    def opened(self, sequence: Sequence) -> None:
        """The session is open."""
        document = Opened(
            sequence.session.session_id,
            self.rfc3339(sequence.session.expires_at),
            usage_of(sequence),
        )
        for subscriber in sequence.subscribers:
            self.answer(subscriber.request_id, document, **self._session_fields(sequence))

    def failed(self, sequence: Sequence, error: StatefulError) -> None:
        """The turn was rolled back."""
        for request_id in sequence.request_ids:
            self.refuse(request_id, error, sequence.session.session_id)

    def timing_of(self, sequence: Sequence) -> Timing:
        """Where the turn's time went, up to now."""

        def ms(start: float, stop: float | None) -> float:
            return round(1000 * (stop - start), 3) if stop is not None else 0.0

        first = sequence.first_token_at
        return Timing(
            queue_ms=ms(sequence.submitted_at, sequence.started_at),
            prefill_ms=ms(sequence.started_at, first),
            first_token_ms=ms(sequence.submitted_at, first),
            total_ms=ms(sequence.submitted_at, self._clock()),
            restored_from=sequence.restored_from,
        )

    def _session_fields(self, sequence: Sequence) -> dict[str, Any]:
        session = sequence.session
        until = self.unix_time(session.expires_at) if sequence.creates_session else None
        return {"session_id": session.session_id, "opened_until": until}

    def _turn(self, session_id: str, turn: Turn, text: str, **extra: Any) -> TurnAnswer:
        return TurnAnswer(
            text=text,
            session_id=session_id,
            turn=turn.number,
            finish_reason=turn.finish_reason,
            usage=turn.usage,
            timing=turn.timing,
            **extra,
        )


def _unacked(sequence: Sequence, subscriber: Subscriber) -> tuple[int, ...]:
    return tuple(sequence.ids[sequence.num_prompt + subscriber.acked :])


def usage_of(sequence: Sequence) -> Usage:
    """The token counts of a turn as it stands; an `open` has no completion."""
    return Usage(
        prompt_tokens=sequence.num_prompt,
        completion_tokens=sequence.num_generated if isinstance(sequence.command, Prompt) else 0,
        prompt_tokens_details=TokenDetails(cached_tokens=sequence.cached),
    )
