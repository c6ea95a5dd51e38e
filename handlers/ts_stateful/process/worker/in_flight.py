"""Requests that a worker has accepted and its engine has not answered yet.

A request that repeatedly crashes engines is isolated and rejected. The caller holds a lock.
"""

from __future__ import annotations

from collections.abc import Iterator

from msgspec import Struct, structs

from ts_stateful.process.worker.engine_calls import MessageSender
from ts_stateful.protocol.errors import TooManySessions
from ts_stateful.protocol.events import Event, EventKind, Submit
from ts_stateful.protocol.logprobs import TokenLogprob
from ts_stateful.protocol.requests import Cancel, Continue, Info, Step

__all__ = ["InFlight", "InFlightRequests"]

_MAX_EXCLUSIVE_DEATHS = 2  # of engines that had only this request, so it is the cause
_MAX_DEATHS = 20  # with other requests in the engine, or with progress in between
_ABOUT_TURNS = (Cancel, Continue, Info)  # only the engine that runs the turn can answer them
_SUSPECT_DEATHS = 2  # without progress, after which the request is tried alone


class InFlight(Struct, eq=False):
    """A request in flight. `next_engines` are the indexes of engines to try if this one has no room for its session."""

    message: Submit
    next_engines: tuple[int, ...] = ()
    sent: bool = False
    answered: bool = False  # by a `LAST` after which the turn goes on
    deaths: int = 0
    fruitless_deaths: int = 0  # since its last progress
    exclusive_deaths: int = 0  # of the fruitless ones, with no other request in the engine
    num_chars: int = 0
    token_ids: list[int] = []
    logprobs: list[TokenLogprob] = []

    @property
    def to_send(self) -> Submit:
        """The message for the next engine; a retry carries what is known of the reply."""
        if not self.deaths:
            return self.message
        return structs.replace(
            self.message,
            is_retry=True,
            skip=self.num_chars,
            replay=tuple(self.token_ids),
            replay_logprobs=tuple(self.logprobs),
        )

    @property
    def is_suspect(self) -> bool:
        """Return True if the request may crash engines, so that it must be tried alone."""
        return self.fruitless_deaths >= _SUSPECT_DEATHS

    @property
    def is_rejected(self) -> bool:
        """Return True if the request must not be sent again."""
        return self.exclusive_deaths >= _MAX_EXCLUSIVE_DEATHS or self.deaths >= _MAX_DEATHS

    def may_move(self, event: Event) -> bool:
        """Return True if the engine had no room for the session, and another one is to be tried."""
        return event.status == TooManySessions.status and bool(self.next_engines)

    def count_death(self, *, exclusive: bool) -> None:
        """Count the death of the engine that had the request; `exclusive` if it had no other."""
        self.sent = False
        self.deaths += 1
        self.fruitless_deaths += 1
        self.exclusive_deaths += exclusive

    def record(self, event: Event) -> bool:
        """Record what an event adds to the reply; return True if the event is for the client."""
        is_for_client = event.kind not in (EventKind.PROGRESS, EventKind.OVER) and not self.answered
        self.answered |= event.more
        self.num_chars += event.num_chars
        self.token_ids += event.token_ids
        self.logprobs += event.logprobs
        if event.token_ids:
            self.fruitless_deaths = self.exclusive_deaths = 0
        return is_for_client


class InFlightRequests:
    """The requests of one worker to one engine, in their order of arrival."""

    def __init__(self, sender: MessageSender) -> None:
        self._sender = sender
        self._requests: dict[str, InFlight] = {}
        self.num_bytes = 0  # of the clients' requests
        self._suspect: InFlight | None = None  # tried alone while all others wait
        # The engine finishes what it has; new requests wait for its successor.
        self.draining = False
        self.for_good = False  # there will be no successor

    def __len__(self) -> int:
        return len(self._requests)

    def __iter__(self) -> Iterator[InFlight]:
        return iter(list(self._requests.values()))

    def bytes_of(self, principal: str | None) -> int:
        """Return the bytes of a principal's requests."""
        messages = (request.message for request in self)
        return sum(one.num_bytes for one in messages if one.principal == principal)

    @property
    def stranded(self) -> list[InFlight]:
        """The requests that no engine has or will have."""
        return self._waiting() if self.for_good else []

    def get(self, request_id: str) -> InFlight | None:
        """Return a request by its id."""
        return self._requests.get(request_id)

    def add(self, request: InFlight) -> None:
        """Take a request; send it at once unless another one is tried alone."""
        self._requests[request.message.request_id] = request
        self.num_bytes += request.message.num_bytes
        if self._suspect is None:
            self._send(request)

    def remove(self, request_id: str) -> InFlight | None:
        """Remove and return a request; None if it is not here."""
        request = self._requests.pop(request_id, None)
        if request is not None:
            self.num_bytes -= request.message.num_bytes
            self.clear(request)
        return request

    def send_waiting(self) -> None:
        """Send what the engine does not have, in order; a suspect goes first and alone."""
        waiting = self._waiting()
        self._suspect = next((request for request in waiting if request.is_suspect), None)
        for request in waiting if self._suspect is None else [self._suspect]:
            self._send(request)

    def drain(self, *, for_good: bool) -> None:
        """Send no new requests to this engine, which finishes what it has and exits.

        They wait for its successor. Refusing them would leave gaps in sessions whose clients do not wait for answers.
        """
        self.draining, self.for_good = True, for_good

    def has_step_of(self, session_id: str | None) -> bool:
        """Return True if a step of this id is in flight: of the next sequence, if one has just ended."""
        commands = (request.message.command for request in self)
        return any(isinstance(one, Step) and one.session_id == session_id for one in commands)

    def clear(self, request: InFlight) -> None:
        """End the trial of a request that the engine has survived."""
        if request is self._suspect:
            self.send_waiting()

    def engine_died(self) -> list[InFlight]:
        """Mark the engine's requests to be sent again; return the rejected ones."""
        self._suspect = None
        self.draining = self.for_good
        sent = [request for request in self if request.sent]
        for request in sent:
            request.count_death(exclusive=len(sent) == 1)
        return [request for request in sent if request.is_rejected]

    def _waiting(self) -> list[InFlight]:
        return [request for request in self if not request.sent]

    def _send(self, request: InFlight) -> None:
        if self.draining and not isinstance(request.message.command, _ABOUT_TURNS):
            return
        request.sent = self._sender.send(request.to_send)
