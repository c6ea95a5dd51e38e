"""Who waits for which turn.

Owns the requests that wait for a turn, and the time that is given to one for which nobody waits. Knows nothing of how a turn
comes to its end: it is told, and tells those who wait, through the outbox.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable

from ts_stateful.language.conversation.turn import PendingContinue, Sequence, Status, Subscriber
from ts_stateful.language.turns.outbox import TurnOutbox
from ts_stateful.protocol.errors import StatefulError
from ts_stateful.protocol.events import Submit
from ts_stateful.protocol.requests import Prompt
from ts_stateful.sessions.session import Turn

__all__ = ["Waiters"]


class Waiters:
    """Everybody who waits for a turn of this engine. A turn without anybody goes on for `reattach_s` seconds."""

    def __init__(self, outbox: TurnOutbox, reattach_s: float, clock: Callable[[], float]) -> None:
        self._outbox = outbox
        self._reattach_s = reattach_s
        self._clock = clock
        self._requests: dict[str, Sequence] = {}
        self._unfinished: set[Sequence] = set()
        self._away = False

    def __len__(self) -> int:
        """The number of turns that are not done."""
        return len(self._unfinished)

    def subscribe(self, sequence: Sequence, message: Submit) -> None:
        """A request wants this turn's answer; one that joins a running turn gets it from its beginning."""
        command = sequence.command
        stream = isinstance(message.command, Prompt) and message.command.stream and not message.pull
        subscriber = Subscriber(message.request_id, stream, message.pull, sent=message.skip)
        subscriber.acked = len(message.replay)
        sequence.subscribers.append(subscriber)
        sequence.orphaned_at = None
        self._requests[message.request_id] = sequence
        self._unfinished.add(sequence)
        if sequence.status is Status.RUNNING and isinstance(command, Prompt):
            self._accept(sequence, subscriber)
            self._outbox.progress(sequence)

    def wait(self, sequence: Sequence, request_id: str, after: int, wait_s: float) -> None:
        """A `continue` waits until there is text behind `after` characters, for `wait_s` seconds at most."""
        sequence.continues.append(PendingContinue(request_id, after, self._clock() + wait_s))
        sequence.orphaned_at = None
        self._requests[request_id] = sequence
        self._answer_waiters(sequence)

    def drop(self, request_id: str) -> None:
        """The client of this request is gone."""
        sequence = self._requests.pop(request_id, None)
        if sequence is not None:
            sequence.subscribers = [s for s in sequence.subscribers if s.request_id != request_id]
            sequence.continues = [w for w in sequence.continues if w.request_id != request_id]
            self._mark_orphan(sequence)

    def tick(self) -> list[Sequence]:
        """Answers `continue`s that have waited enough; returns the turns that nobody came back for."""
        now = self._clock()
        for sequence in list(self._unfinished):
            for waiter in [w for w in sequence.continues if now >= w.deadline]:
                self._answer(sequence, waiter)
        gone = [s for s in self._unfinished if now - (s.orphaned_at or now) >= self._reattach_s]
        return [s for s in gone if s.ephemeral or not self._away]

    def next_deadline(self) -> float | None:
        """The clock's time at which `tick` has something to do, or None."""
        marks = (None if self._away else s.orphaned_at for s in self._unfinished)
        orphans = (mark + self._reattach_s for mark in marks if mark is not None)
        waiters = (waiter.deadline for s in self._unfinished for waiter in s.continues)
        return min(itertools.chain(orphans, waiters), default=None)

    def set_away(self, away: bool) -> None:
        """Says whether nobody can come back because the worker is away; then the time of waiting does not run."""
        if self._away and not away:
            for sequence in self._unfinished:
                self._mark_orphan(sequence)
        self._away = away

    def started(self, sequence: Sequence) -> None:
        """The turn runs."""
        for subscriber in list(sequence.subscribers):
            self._accept(sequence, subscriber)

    def progressed(self, sequence: Sequence) -> None:
        """The reply may have grown."""
        self._outbox.progress(sequence)
        self._answer_waiters(sequence)

    def finished(self, sequence: Sequence, turn: Turn | None) -> None:
        """The turn is committed, or the session open where there is no turn."""
        if turn is None:
            self._outbox.opened(sequence)
        else:
            self._outbox.finished(sequence, turn)
        self._forget(sequence)

    def failed(self, sequence: Sequence, error: StatefulError) -> None:
        """The turn was rolled back."""
        self._outbox.failed(sequence, error)
        self._forget(sequence)

    def _accept(self, sequence: Sequence, subscriber: Subscriber) -> None:
        self._outbox.accepted(sequence, subscriber)
        if subscriber.pull:  # has its answer, and comes back by `continue`
            sequence.subscribers.remove(subscriber)
            sequence.pulled.append(subscriber)
            self._requests.pop(subscriber.request_id, None)
            self._mark_orphan(sequence)

    def _answer_waiters(self, sequence: Sequence) -> None:
        num_chars = len(sequence.text)
        for waiter in [w for w in sequence.continues if num_chars > w.after]:
            self._answer(sequence, waiter)

    def _answer(self, sequence: Sequence, waiter: PendingContinue) -> None:
        sequence.continues.remove(waiter)
        self._requests.pop(waiter.request_id, None)
        self._outbox.tell(sequence)
        self._outbox.partial(waiter.request_id, sequence, waiter.after)
        self._mark_orphan(sequence)

    def _mark_orphan(self, sequence: Sequence) -> None:
        if not sequence.subscribers and not sequence.continues:
            # To one that is alone nobody can come back.
            sequence.orphaned_at = self._clock() - (self._reattach_s if sequence.ephemeral else 0.0)

    def _forget(self, sequence: Sequence) -> None:
        self._unfinished.discard(sequence)
        self._outbox.over(sequence)
        for request_id in sequence.request_ids:
            self._requests.pop(request_id, None)
