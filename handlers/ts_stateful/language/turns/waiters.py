"""The requests that wait for turns, and the time that a turn gets for which none waits."""

from __future__ import annotations

import itertools

from ts_stateful.language.conversation.history import Turn
from ts_stateful.language.conversation.turn import PendingContinue, Sequence, Subscriber, TurnStatus
from ts_stateful.language.turns.outbox import TurnOutbox
from ts_stateful.protocol.answers import Cancelled
from ts_stateful.protocol.defects import defect
from ts_stateful.protocol.errors import StatefulError
from ts_stateful.protocol.events import Submit
from ts_stateful.protocol.requests import Prompt

__all__ = ["Waiters"]


class Waiters:
    """The waiting requests of one engine. A turn without one goes on for `reattach_s` seconds."""

    def __init__(self, outbox: TurnOutbox, reattach_s: float) -> None:
        self._outbox = outbox
        self._reattach_s = reattach_s
        self._clock = outbox.clock
        self._unfinished: set[Sequence] = set()
        self._away = False

    def __len__(self) -> int:
        """Return the number of turns that are not done."""
        return len(self._unfinished)

    def subscribe(self, sequence: Sequence, message: Submit) -> None:
        """Let a request wait for a turn; one that joins a running turn gets it from its beginning."""
        subscriber = Subscriber.of(message)
        sequence.subscribers.append(subscriber)
        sequence.orphaned_at = None
        self._unfinished.add(sequence)
        if sequence.status is TurnStatus.RUNNING and isinstance(sequence.command, Prompt):
            self._accept(sequence, subscriber)
            self._outbox.progress(sequence)

    def wait(self, sequence: Sequence, request_id: str, after: int, wait_s: float) -> None:
        """Let a `continue` wait for text after `after` characters, for at most `wait_s` seconds."""
        sequence.continues.append(
            PendingContinue(request_id, after, self._clock.monotonic() + wait_s)
        )
        sequence.orphaned_at = None
        self._answer_waiters(sequence)

    def wait_for_end(self, sequence: Sequence, request_id: str) -> None:
        """Let a `cancel` wait until the turn is committed or rolled back; it keeps no turn going."""
        sequence.cancels.append(request_id)

    def drop(self, request_id: str) -> None:
        """Forget a request whose client disconnected."""
        for sequence in self._unfinished:
            if request_id not in (*sequence.request_ids, *sequence.cancels):
                continue
            sequence.subscribers = [s for s in sequence.subscribers if s.request_id != request_id]
            sequence.continues = [w for w in sequence.continues if w.request_id != request_id]
            sequence.cancels = [name for name in sequence.cancels if name != request_id]
            self._mark_orphan(sequence)

    def tick(self) -> list[Sequence]:
        """Answer each `continue` whose wait is over; return the turns that no client came back for."""
        now = self._clock.monotonic()
        for sequence in list(self._unfinished):
            for waiter in [w for w in sequence.continues if now >= w.deadline]:
                self._answer(sequence, waiter)
        late = [s for s in self._unfinished if now - (s.orphaned_at or now) >= self._reattach_s]
        return [s for s in late if s.ephemeral or not self._away]

    def next_deadline(self) -> float | None:
        """Return the clock's time at which `tick` has something to do, or None."""
        marks = (None if self._away else s.orphaned_at for s in self._unfinished)
        orphans = (mark + self._reattach_s for mark in marks if mark is not None)
        waiters = (waiter.deadline for s in self._unfinished for waiter in s.continues)
        return min(itertools.chain(orphans, waiters), default=None)

    def set_away(self, away: bool) -> None:
        """Stop the time that turns get while no worker is connected: clients cannot come back."""
        if self._away and not away:
            for sequence in self._unfinished:
                self._mark_orphan(sequence)
        self._away = away

    def started(self, sequence: Sequence) -> None:
        """Report that a turn runs."""
        for subscriber in list(sequence.subscribers):
            self._accept(sequence, subscriber)

    def progressed(self, sequence: Sequence) -> None:
        """Send what is new of a reply."""
        self._outbox.progress(sequence)
        self._answer_waiters(sequence)

    def finished(self, sequence: Sequence, turn: Turn | None) -> None:
        """Report a committed turn or, if it is None, an open session."""
        try:
            if turn is None:
                self._outbox.opened(sequence)
            else:
                self._outbox.finished(sequence, turn)
        except Exception as error:  # a parser may raise anything; the turn is committed
            self._outbox.failed(sequence, defect(error, "answering a turn"))
        self._forget(sequence, turn)

    def failed(self, sequence: Sequence, error: StatefulError) -> None:
        """Report that a turn was rolled back."""
        self._outbox.failed(sequence, error)
        self._forget(sequence)

    def _accept(self, sequence: Sequence, subscriber: Subscriber) -> None:
        self._outbox.accepted(sequence, subscriber)
        if subscriber.pull:  # it has its answer; the client comes back with `continue`
            sequence.subscribers.remove(subscriber)
            sequence.pulled.append(subscriber)
            self._mark_orphan(sequence)

    def _answer_waiters(self, sequence: Sequence) -> None:
        num_chars = len(sequence.text)
        for waiter in [w for w in sequence.continues if num_chars > w.after]:
            self._answer(sequence, waiter)

    def _answer(self, sequence: Sequence, waiter: PendingContinue) -> None:
        sequence.continues.remove(waiter)
        self._outbox.ack(sequence)
        self._outbox.partial(waiter.request_id, sequence, waiter.after)
        self._mark_orphan(sequence)

    def _mark_orphan(self, sequence: Sequence) -> None:
        if not (sequence.subscribers or sequence.continues or sequence.in_background):
            # No client can come back to an ephemeral session.
            sequence.orphaned_at = self._clock.monotonic() - (
                self._reattach_s if sequence.ephemeral else 0.0
            )

    def _forget(self, sequence: Sequence, turn: Turn | None = None) -> None:
        self._unfinished.discard(sequence)
        self._outbox.over(sequence)
        session_id, number = sequence.session.session_id, None if turn is None else turn.number
        answer = Cancelled(session_id, cancelled=True, turn=number)
        for request_id in sequence.cancels:
            self._outbox.answer(request_id, answer, session_id=session_id)
