"""Requests between the worker that has taken them and the engine that answers them.

Owns what is known of an answer, from which another engine can take it up, how often engines have died with a request, and which
of them an engine gets when. Knows nothing of processes; whoever calls holds a lock.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from msgspec import structs

from ts_stateful.process.worker.trial_lock import TrialLock
from ts_stateful.protocol.events import Event, Submit
from ts_stateful.protocol.requests import Cancel, Continue, Info

__all__ = ["InFlight", "Outstanding"]

_MAX_DEATHS_ALONE = 2  # of engines that had nothing else: then it is what they die of
_MAX_DEATHS = 20  # with others in flight, and with progress in between
_ABOUT_WORK = (Cancel, Continue, Info)  # of an engine, so that no other one can answer them now
_SUSPECT_DEATHS = 2  # with others in flight and without progress: the request is tried alone


@dataclass(eq=False)
class InFlight:
    """A request that an engine has not answered; `on_full` is called in place of an answer where there is no room for it."""

    message: Submit
    on_full: Callable[[], None] | None
    sent: bool = False
    answered: bool = False  # by a `LAST` behind which the turn went on
    deaths: int = 0
    fruitless: int = 0  # deaths since its last sign of progress
    alone: int = 0  # of these, with nothing else in flight
    num_chars: int = 0
    token_ids: list[int] = field(default_factory=list)

    @property
    def to_send(self) -> Submit:
        """The request as an engine gets it: behind the first time, with what is known of the reply."""
        if not self.deaths:
            return self.message
        return structs.replace(
            self.message, is_retry=True, skip=self.num_chars, replay=tuple(self.token_ids)
        )

    def died(self, *, alone: bool) -> None:
        """The engine that had it is gone."""
        self.sent = False
        self.deaths += 1
        self.fruitless += 1
        self.alone += alone

    @property
    def is_suspect(self) -> bool:
        """Whether it may be what engines die of, so that it has to be tried alone."""
        return self.fruitless >= _SUSPECT_DEATHS

    @property
    def is_doomed(self) -> bool:
        """Whether it is given up."""
        return self.alone >= _MAX_DEATHS_ALONE or self.deaths >= _MAX_DEATHS

    def progressed(self, event: Event) -> None:
        """The engine has told something of its turn."""
        self.num_chars += event.num_chars
        self.token_ids += event.token_ids
        if event.token_ids:
            self.fruitless = self.alone = 0


class Outstanding:
    """What one engine has to answer, in the order in which it came. `send` gives a request to it, where there is one.

    Where other workers use the engine too, `gate` says when; what it has held up is sent by `send_held`.
    """

    def __init__(self, send: Callable[[InFlight], None], gate: TrialLock | None = None) -> None:
        self._send = send
        self._trial_lock = gate or TrialLock()
        self._is_held = False  # something is; what comes later must not overtake it
        self._requests: dict[str, InFlight] = {}
        self._suspect: InFlight | None = None  # tried alone; everything else waits
        self.engine_drains = False  # it finishes what it has; the rest waits for the next one
        self.for_good = False  # there will be no next one

    def __len__(self) -> int:
        return len(self._requests)

    def __iter__(self) -> Iterator[InFlight]:
        return iter(list(self._requests.values()))

    @property
    def late(self) -> list[InFlight]:
        """What no engine has, nor will have."""
        return self._waiting() if self.for_good else []

    def get(self, request_id: str) -> InFlight | None:
        """The request of that id."""
        return self._requests.get(request_id)

    def add(self, request: InFlight) -> None:
        """Takes a request, which goes to the engine at once unless another one is tried alone."""
        self._requests[request.message.request_id] = request
        if self._suspect is None and not self._is_held:
            self._give(request)

    def remove(self, request_id: str) -> InFlight | None:
        """Forgets a request; returns it if it was here."""
        request = self._requests.pop(request_id, None)
        if request is not None:
            self.cleared(request)
            self._leave_if_idle()
        return request

    def send_waiting(self) -> None:
        """Sends what the engine does not have, in order; a request that may be what engines die of first, and alone."""
        waiting = self._waiting()
        self._is_held = False
        self._suspect = next((request for request in waiting if request.is_suspect), None)
        for request in waiting if self._suspect is None else [self._suspect]:
            self._give(request)

    def send_held(self) -> None:
        """To be called every now and then: sends what the gate has held up, as far as it is open by now."""
        if self._is_held:
            self.send_waiting()

    def leave(self, *, for_good: bool) -> None:
        """The engine finishes what it has, and ends; nothing new is sent to it.

        It waits for the next one: to refuse it would tear gaps into sessions whose clients do not wait for answers.
        """
        self.engine_drains, self.for_good = True, for_good

    def close(self) -> None:
        """Nothing is sent any more."""
        self._trial_lock.close()

    def cleared(self, request: InFlight) -> None:
        """The engine has lived on with this request."""
        if request is self._suspect:
            self.send_waiting()

    def engine_died(self) -> list[InFlight]:
        """What the engine had is to be sent again; returns what is given up instead."""
        self._suspect = None
        self.engine_drains = self.for_good
        sent = [request for request in self if request.sent]
        for request in sent:
            request.died(alone=len(sent) == 1 and self._trial_lock.is_alone)
        self._trial_lock.leave()
        return [request for request in sent if request.is_doomed]

    def _waiting(self) -> list[InFlight]:
        return [request for request in self if not request.sent]

    def _give(self, request: InFlight) -> None:
        if self.engine_drains and not isinstance(request.message.command, _ABOUT_WORK):
            return
        self._is_held = self._is_held or not self._trial_lock.enter(alone=request is self._suspect)
        if not self._is_held:
            self._send(request)
            self._leave_if_idle()  # there is no engine

    def _leave_if_idle(self) -> None:
        if not any(request.sent for request in self._requests.values()):
            self._trial_lock.leave()
