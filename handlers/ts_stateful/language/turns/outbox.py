"""The answers to turns, as events for the worker."""

from __future__ import annotations

import dataclasses
from typing import Any

from msgspec import UNSET, structs

from ts_stateful.engine.core import EngineCore
from ts_stateful.engine.outbox import Outbox
from ts_stateful.language.conversation.history import Turn
from ts_stateful.language.conversation.turn import Sequence, Subscriber
from ts_stateful.language.network.load import Model
from ts_stateful.language.text.reply_parser import ReplyParser, ReplyPiece
from ts_stateful.protocol.answers import (
    Logprob,
    Opened,
    Recalled,
    ReplyDetails,
    Timing,
    TokenDetails,
    TurnAnswer,
    TurnPart,
    Usage,
    encode,
)
from ts_stateful.protocol.errors import StatefulError
from ts_stateful.protocol.events import Event, EventKind
from ts_stateful.protocol.logprobs import tokens_within
from ts_stateful.protocol.requests import Prompt
from ts_stateful.sessions.session import Session

__all__ = ["TurnOutbox", "usage_of"]

_ACK_EVERY = 8  # ids of an unstreamed reply that are reported to the worker together


class TurnOutbox(Outbox):
    """Emits the events of turns; a stream gets text at most every `handler.streamIntervalSec` seconds."""

    def __init__(self, core: EngineCore[Any], model: Model) -> None:
        super().__init__(core.outbox.events, core.clock)
        self._token_bytes = model.token_bytes
        self._template = model.text.reply_template
        self._stream_interval_s = core.config.handler.stream_interval_sec

    def accepted(self, sequence: Sequence, subscriber: Subscriber) -> None:
        """Report that the turn runs; a pulling client gets the text so far as its answer."""
        fields = self._session_fields(sequence)
        if not subscriber.pull:
            recalled = Recalled(text="", turn=sequence.number, note=sequence.note)
            body = encode(recalled) if subscriber.recalls else b""
            self.events.emit(Event(subscriber.request_id, EventKind.ACCEPTED, body, **fields))
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
        """Send new text to streams, and new ids to the worker for everybody else."""
        text, now = sequence.text, self.clock.monotonic()
        for subscriber in sequence.subscribers:
            if subscriber.stream and len(text) > subscriber.sent and now >= subscriber.next_at:
                subscriber.next_at = now + self._stream_interval_s
                self._send_part(sequence, subscriber, text)
        for subscriber in (*sequence.subscribers, *sequence.pulled):
            if not subscriber.stream and sequence.num_generated - subscriber.acked >= _ACK_EVERY:
                self._ack(sequence, subscriber)

    def _send_part(self, sequence: Sequence, subscriber: Subscriber, text: str) -> None:
        subscriber.parser = subscriber.parser or self._parser(sequence, subscriber.sent)
        piece, logprobs = self._next(sequence, subscriber.parser, subscriber.sent, len(text))
        num_chars, subscriber.sent = len(text) - subscriber.sent, len(text)
        known = _unacked(sequence, subscriber)
        if piece == ReplyPiece() and not logprobs:  # a part of a mark, or of a call
            event = Event(subscriber.request_id, EventKind.PROGRESS, num_chars=num_chars, **known)
        else:
            event = Event(
                subscriber.request_id,
                EventKind.PART,
                encode(TurnPart(*piece, logprobs=logprobs)),
                num_chars=num_chars,
                **known,
                **self._session_fields(sequence),
            )
        self.events.emit(event)

    def _parser(self, of: Sequence | Turn, num_chars: int) -> ReplyParser | None:
        """Return the parser of a reply after its first `num_chars`; None if its text is as the model wrote it."""
        if of.parsing is None or self._template is None:
            return None
        parser = ReplyParser(self._template, of.parsing, of.origin)
        parser.feed(of.text[:num_chars])
        return parser

    def _next(
        self, of: Sequence | Turn, parser: ReplyParser | None, after: int, upto: int | None
    ) -> tuple[ReplyPiece, list[Logprob] | None]:
        """Return what a client gets with the reply from character `after` up to `upto`, or to its end."""
        text = of.text[after:upto]
        if parser is None:
            piece, before, shown, settled = ReplyPiece(text), None, None, after
        else:
            before, shown, settled = [*parser.shown], parser.shown, parser.settled
            piece = parser.feed(text)
            if upto is None:
                piece = piece.joined(parser.finish())
            if parser.settled == settled:  # as within a call: no text before has come to be shown
                settled = after
        if not of.logprobs:
            return piece, None
        known = tokens_within(of.logprobs, after, before, settled)
        new = tokens_within(of.logprobs, upto, shown, settled) - known
        return piece, self._token_bytes.logprobs(of.logprobs, new)

    def ack(self, sequence: Sequence) -> None:
        """Report all ids so far: a client is about to see their text, so a new engine must not choose others."""
        for subscriber in sequence.pulled:
            if sequence.num_generated > subscriber.acked:
                self._ack(sequence, subscriber)

    def _ack(self, sequence: Sequence, subscriber: Subscriber) -> None:
        known = _unacked(sequence, subscriber)
        self.events.emit(Event(subscriber.request_id, EventKind.PROGRESS, **known))

    def over(self, sequence: Sequence) -> None:
        """Report the end of a turn to those who pull it, whether it was committed or not."""
        for subscriber in sequence.pulled:
            self.events.emit(Event(subscriber.request_id, EventKind.OVER))

    def finished(self, sequence: Sequence, turn: Turn) -> None:
        """Send the end of a committed turn to everybody who waits for it."""
        fields = self._session_fields(sequence)
        for subscriber in sequence.subscribers:
            if not turn.delta.has_reply:
                self.added(subscriber, sequence.session, turn)
                continue
            sent = subscriber.sent if subscriber.stream else 0
            extra = {"next": len(turn.text), "more": False} if subscriber.pull else {}
            document: TurnAnswer
            if subscriber.recalls:
                document = self.recalled(sequence.session, turn, sent)
            else:
                document = self._turn(sequence.session.session_id, turn, sent, **extra)
            self.answer(subscriber.request_id, document, **fields)
        for waiter in sequence.continues:
            self.continued(waiter.request_id, sequence.session.session_id, turn, waiter.after)

    def reopened(self, request_id: str, session: Session[Any]) -> None:
        """Answer a repeated `open` whose session is open already."""
        self._opened(request_id, session, Usage(prompt_tokens=len(session.state.log)))

    def replayed(
        self,
        subscriber: Subscriber,
        session_id: str,
        turn: Turn,
        *,
        opened_until: int | None = None,
    ) -> None:
        """Answer a request for a turn that was committed before."""
        extra = {"next": len(turn.text), "more": False} if subscriber.pull else {}
        sent = subscriber.sent if subscriber.stream else 0
        document = self._turn(session_id, turn, sent, replayed=True, **extra)
        self.answer(
            subscriber.request_id,
            document,
            session_id=session_id,
            opened_until=opened_until,
            turn=turn.number,
        )

    def added(self, subscriber: Subscriber, session: Session[Any], turn: Turn) -> None:
        """Answer a request that only added messages, with all turns of the session."""
        until = self.until(session.expires_at) if turn.number == 1 else None
        self.answer(
            subscriber.request_id,
            self.history(session, self.recalled(session, turn)),
            session_id=session.session_id,
            opened_until=until,
            turn=turn.number,
        )

    def recalled(self, session: Session[Any], turn: Turn, after: int = 0) -> Recalled:
        """Return a committed turn with its note, from character `after` of its text on."""
        answer = self._turn(session.session_id, turn, after, replayed=True)
        return Recalled(**structs.asdict(answer), note=turn.note)

    def history(self, session: Session[Any], last: Recalled) -> Recalled:
        """Return a turn with the committed ones before it."""
        before = session.state.turns[: (last.turn or 1) - 1]
        return structs.replace(last, earlier=[self.recalled(session, turn) for turn in before])

    def continued(self, request_id: str, session_id: str, turn: Turn, after: int) -> None:
        """Answer a `continue` with a committed turn, from character `after` on."""
        unparsed = dataclasses.replace(turn, parsing=None)
        document = self._turn(session_id, unparsed, after, next=len(turn.text), more=False)
        self.answer(request_id, document, session_id=session_id)

    def partial(self, request_id: str, sequence: Sequence, after: int) -> None:
        """Answer a `continue` with the text of a turn in progress, from character `after` on."""
        text = sequence.text
        piece, logprobs = self._next(sequence, None, after, len(text))
        document = TurnAnswer(text=piece.text, next=len(text), more=True, logprobs=logprobs)
        self.answer(request_id, document, session_id=sequence.session.session_id)

    def opened(self, sequence: Sequence) -> None:
        """Answer an `open`."""
        for subscriber in sequence.subscribers:
            self._opened(subscriber.request_id, sequence.session, usage_of(sequence))

    def _opened(self, request_id: str, session: Session[Any], usage: Usage) -> None:
        document = Opened(session.session_id, self.clock.rfc3339(session.expires_at), usage)
        until = self.until(session.expires_at)
        self.answer(request_id, document, session_id=session.session_id, opened_until=until)

    def failed(self, sequence: Sequence, error: StatefulError) -> None:
        """Send the error of a turn that was rolled back to everybody who waits for it."""
        for request_id in sequence.request_ids:
            self.refuse(request_id, error, sequence.session.session_id)

    def timing_of(self, sequence: Sequence) -> Timing:
        """Return the times of a turn up to now."""

        def ms(start: float, stop: float | None) -> float:
            return round(1000 * (stop - start), 3) if stop is not None else 0.0

        first = sequence.first_token_at
        return Timing(
            queue_ms=ms(sequence.submitted_at, sequence.started_at),
            prefill_ms=ms(sequence.started_at, first),
            first_token_ms=ms(sequence.submitted_at, first),
            total_ms=ms(sequence.submitted_at, self.clock.monotonic()),
            restored_from=sequence.restored_from,
        )

    def _session_fields(self, sequence: Sequence) -> dict[str, Any]:
        session = sequence.session
        until = self.until(session.expires_at) if sequence.creates_session else None
        return {"session_id": session.session_id, "opened_until": until, "turn": sequence.number}

    def _turn(self, session_id: str, turn: Turn, after: int, **extra: Any) -> TurnAnswer:
        piece, logprobs = self._next(turn, self._parser(turn, after), after, None)
        return TurnAnswer(
            text=piece.text,
            reasoning=piece.reasoning,
            tool_calls=piece.tool_calls,
            session_id=session_id,
            turn=turn.number,
            finish_reason=turn.finish_reason,
            usage=turn.usage,
            timing=turn.timing,
            logprobs=logprobs,
            **extra,
        )


def _unacked(sequence: Sequence, subscriber: Subscriber) -> dict[str, Any]:
    """Return the fields of an event that tell the worker what it does not know of the reply."""
    acked, subscriber.acked = subscriber.acked, sequence.num_generated
    ids = tuple(sequence.ids[sequence.num_prompt + acked :])
    return {"token_ids": ids, "logprobs": tuple(sequence.logprobs[acked:])}


def usage_of(sequence: Sequence) -> Usage:
    """Return the token counts of a turn so far; an `open` has no completion."""
    reasoning = ReplyDetails(sequence.num_reasoning) if sequence.num_reasoning else UNSET
    return Usage(
        prompt_tokens=sequence.num_prompt,
        completion_tokens=sequence.num_generated if isinstance(sequence.command, Prompt) else 0,
        prompt_tokens_details=TokenDetails(cached_tokens=sequence.cached),
        completion_tokens_details=reasoning,
    )
