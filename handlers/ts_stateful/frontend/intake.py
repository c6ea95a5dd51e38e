"""Requests on their way to the dispatcher; an error of one never fails another."""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Callable, Mapping
from typing import Any, Final, NamedTuple, Protocol, TypeVar

from msgspec import structs

from ts_stateful.clock import SYSTEM_CLOCK, Clock
from ts_stateful.frontend.admission import Admission, call_of
from ts_stateful.frontend.audit import DISCONNECTED, Trace
from ts_stateful.frontend.dialects.openai_responder import OpenAiResponder
from ts_stateful.frontend.inbox import Mailbox
from ts_stateful.frontend.observer import Observer, Observers, report_of
from ts_stateful.frontend.open_inference.responder import InferErrors
from ts_stateful.frontend.parsing.correlation import Correlation
from ts_stateful.frontend.parsing.headers import HeaderReader, RequestHeaders
from ts_stateful.frontend.parsing.limits import HeldBytes, Parts, num_bytes
from ts_stateful.frontend.pending_response import ClientKind, PendingResponse
from ts_stateful.principals.authenticator import Call
from ts_stateful.protocol.defects import defect
from ts_stateful.protocol.errors import KeysUnavailable, StatefulError, Unauthenticated
from ts_stateful.protocol.events import Event, Submit
from ts_stateful.protocol.requests import Hello

__all__ = ["MAX_HELLO_BYTES", "Arrival", "Dispatching", "Intake", "Parser"]

logger = logging.getLogger(__name__)
_T = TypeVar("_T")
MAX_HELLO_BYTES: Final = 512
"""The size of a body that is read although its request has no principal."""


class Arrival(NamedTuple):
    """A request as it came: the parts of its body by name, its headers, and what can name its principal.

    One with a `refusal` is refused for that reason before it is parsed.
    """

    data: Parts
    headers: RequestHeaders
    call: Call = Call()
    known: Correlation | None = None
    refusal: StatefulError | None = None


class Dispatching(HeldBytes, Protocol):
    """The frontend's view of the dispatcher. `submit` never blocks; events go to the mailbox."""

    def start(self) -> None:
        """Return when the engines answer."""

    def submit(self, message: Submit) -> None:
        """Send a request to the engine of its session."""

    def describe(self, request_id: str) -> None:
        """Answer with the engines' stats."""

    def drop(self, request_id: str) -> None:
        """Send no more events: the client disconnected."""


class Parser(Protocol):
    """A parser of requests to one kind of model."""

    def parse(
        self, pending: PendingResponse, data: Parts, headers: RequestHeaders
    ) -> Submit | Event:
        """Return the message to the engine, or the answer if no engine is needed. Raise StatefulError to refuse it."""


class Intake:
    """The start and the end of every request."""

    def __init__(
        self,
        dispatcher: Dispatching,
        mailbox: Mailbox,
        parser: Parser,
        headers: HeaderReader,
        admission: Admission | None = None,
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        self._dispatcher = dispatcher
        self._mailbox = mailbox
        self._parser = parser
        self._headers = headers
        self._admission = admission or Admission()
        self._clock = clock
        self._refusal: StatefulError | None = None
        self.observer: Observer = Observers()

    def refuse_sessions(self, error: StatefulError | None) -> None:
        """Refuse requests that would open a session from now on; None takes them again."""
        self._refusal = error

    def refusal_of(self, call: Call) -> StatefulError | None:
        """Return the refusal of a call that has no principal, and None for all others."""
        try:
            self._admission.namespace_of(call)
        except (Unauthenticated, KeysUnavailable) as error:
            return error
        return None

    def take(self, request_id: str, data: Parts, headers: Mapping[str, Any]) -> PendingResponse:
        """Submit a new request from TorchServe; its events, exactly one of them the last, go to the mailbox."""
        read = self._headers.read(headers)
        call = call_of(headers if read.is_http else data, in_message=not read.is_http)
        known = Correlation.of((name.lower(), value) for name, value in headers.items())
        pending = self.accept(request_id, Arrival(data, read, call, known))
        _free(data)
        return pending

    def accept(self, request_id: str, arrival: Arrival) -> PendingResponse:
        """Submit a new request, or refuse it; its events, exactly one of them the last, go to the mailbox."""
        headers = arrival.headers
        kind = ClientKind.HTTP if headers.is_http else ClientKind.GRPC
        pending = PendingResponse(
            request_id,
            ClientKind.DESCRIBE if headers.is_describe else kind,
            self._headers.names,
            num_bytes=num_bytes(arrival.data),
            taken_at=self._clock.monotonic(),
        )
        if headers.infers:
            pending.responder = InferErrors()
        elif headers.is_openai:
            pending.responder = OpenAiResponder()
        pending.known = arrival.known or Correlation(_short(request_id))
        self._mailbox.expect(request_id)
        self.attempt(request_id, lambda: self._accept(pending, arrival))
        return pending

    def attempt(self, request_id: str, step: Callable[[], _T]) -> _T | None:
        """Run a step of a request's work; an error of it becomes the last event of the request."""
        try:
            return step()
        except StatefulError as error:
            # Its frames have the body. They would keep each other if one of them, or the request, still had the error.
            self._mailbox.post(Event.refusal(request_id, error.with_traceback(None)))
        except Exception as error:  # the boundary: a defect fails the request that met it
            failure = defect(error, f"request {_short(request_id)}")
            self._mailbox.post(Event.refusal(request_id, failure))
        return None

    def age_s(self, pending: PendingResponse) -> float:
        """Return the seconds since the request was taken."""
        return self._clock.monotonic() - pending.taken_at

    def finish(self, pending: PendingResponse) -> None:
        """Forget a request whose last response was returned."""
        self._mailbox.forget(pending.request_id)
        self._audit(pending, pending.status)
        self.observer.answered(pending, report_of(pending.last_body))
        if logger.isEnabledFor(logging.DEBUG):
            logger.debug(
                "request %s: %d, %.1f ms, %d bytes in, %d bytes out",
                _short(pending.request_id),
                pending.status,
                1000 * self.age_s(pending),
                pending.num_bytes,
                pending.num_sent,
            )

    def drop(self, pending: PendingResponse) -> None:
        """Forget a request whose client disconnected, or whose worker stops."""
        self._mailbox.forget(pending.request_id)
        self._dispatcher.drop(pending.request_id)
        self._audit(pending, DISCONNECTED)
        self.observer.dropped(pending)
        logger.info("request %s: dropped, its client disconnected", _short(pending.request_id))

    def _audit(self, pending: PendingResponse, status: int) -> None:
        sizes = (pending.num_bytes, pending.num_sent)
        principal = pending.namespace.principal
        self._admission.audit.write(pending.trace, principal, status, num_bytes=sizes)

    def _accept(self, pending: PendingResponse, arrival: Arrival) -> None:
        if arrival.refusal is not None:
            raise arrival.refusal
        if arrival.headers.is_describe:
            self._dispatcher.describe(pending.request_id)
            return
        try:
            pending.namespace = self._admission.namespace_of(arrival.call)
        except (Unauthenticated, KeysUnavailable):
            greeting = self._greeting(pending, arrival.data, arrival.headers)
            if greeting is None:
                raise
            self._dispatcher.submit(greeting)
        else:
            self._admission.check_bytes(pending.namespace.principal, pending.num_bytes)
            self._submit(pending, arrival.data, arrival.headers)

    def _greeting(
        self, pending: PendingResponse, data: Parts, read: RequestHeaders
    ) -> Submit | None:
        """Return the request if it is a `hello`, which health checks send without a principal; it names no session."""
        if len(data) != 1 or num_bytes(data) > MAX_HELLO_BYTES:
            return None
        refused_as = pending.responder
        try:
            message = self._parse(pending, data, read)
        except StatefulError:
            message = None
        if isinstance(message, Submit) and isinstance(message.command, Hello):
            return structs.replace(message, command=Hello())
        pending.responder = refused_as
        return None

    def _submit(self, pending: PendingResponse, data: Parts, headers: RequestHeaders) -> None:
        message = self._parse(pending, data, headers)
        if isinstance(message, Event):
            self._mailbox.post(message)
            return
        message = pending.namespace.inward(message)
        pending.trace = Trace.of(message)
        self._admission.check(message)
        if self._refusal is not None:
            if message.creates_session:
                raise self._refusal
            message = structs.replace(message, may_begin=False)
        pending.streams = message.streams
        pending.names_session = not message.ephemeral
        self._dispatcher.submit(message)

    def _parse(
        self, pending: PendingResponse, data: Parts, headers: RequestHeaders
    ) -> Submit | Event:
        self._admission.check_origin(headers.origin)
        return self._parser.parse(pending, data, headers)


def _short(request_id: str) -> str:
    return hashlib.sha256(request_id.encode()).hexdigest()[:12]


def _free(data: Parts) -> None:
    """Empty the bodies of a request that was parsed: TorchServe holds them until the last answer of their batch."""
    for part in data.values():
        if isinstance(part, bytearray):
            part.clear()
