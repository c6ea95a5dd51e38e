"""One request at the front, from its arrival to its last response."""

from __future__ import annotations

import contextlib
from abc import abstractmethod
from collections.abc import AsyncGenerator, AsyncIterator, Sequence

from msgspec import structs

from ts_stateful.asgi.model import ModelFront
from ts_stateful.frontend.intake import Arrival
from ts_stateful.frontend.parsing.batch import split_batch
from ts_stateful.frontend.parsing.correlation import new_request_id
from ts_stateful.frontend.pending_response import Response
from ts_stateful.protocol.errors import StatefulError

__all__ = ["Submitted", "SubmittedRequest", "exchange", "submit"]


class Submitted(AsyncIterator[Response]):
    """The responses to what was submitted, as they come.

    It has to be closed. Closing it before its end means that the client has disconnected. Events that nobody awaits wait in the
    mailbox, so a request that is not the next one of its stream costs no task.
    """

    @abstractmethod
    async def aclose(self) -> None:
        """Forget all of it; a request is dropped unless its answer is here. Idempotent."""


class SubmittedRequest(Submitted):
    """A request that is submitted at once, or refused."""

    def __init__(self, model: ModelFront, arrival: Arrival) -> None:
        self._intake, self._mailbox = model.intake, model.mailbox
        self._request_id = new_request_id()  # a client's own could be another client's
        self._pending = self._intake.accept(self._request_id, model.placed(arrival))
        self._is_closed = False

    async def __anext__(self) -> Response:
        pending = self._pending
        while not pending.done:
            if response := self._intake.attempt(self._request_id, pending.next):
                return response
            pending.add(await self._mailbox.take(self._request_id))
        raise StopAsyncIteration

    async def aclose(self) -> None:
        """See `Submitted`."""
        if self._is_closed:
            return
        self._is_closed = True
        pending = self._pending
        if not pending.done:
            pending.add(self._mailbox.take_now(self._request_id))
            while self._intake.attempt(self._request_id, pending.next):
                pass
        self._intake.finish(pending) if pending.done else self._intake.drop(pending)


class _SubmittedBatch(Submitted):
    """The requests of one body, submitted at once. Their answers are one response."""

    def __init__(self, model: ModelFront, arrivals: Sequence[Arrival]) -> None:
        self._requests = [SubmittedRequest(model, arrival) for arrival in arrivals]

    async def __anext__(self) -> Response:
        if not self._requests:
            raise StopAsyncIteration
        bodies = [(await anext(request)).body for request in self._requests]
        await self.aclose()
        return Response(b'{"answers":[%b]}' % b",".join(bodies))

    async def aclose(self) -> None:
        """See `Submitted`."""
        while self._requests:
            await self._requests.pop().aclose()


def submit(model: ModelFront, arrival: Arrival) -> Submitted:
    """Submit a request at once, or all those of a batch."""
    if not model.takes_batches or arrival.headers.infers or arrival.refusal is not None:
        return SubmittedRequest(model, arrival)
    try:
        parts = split_batch(arrival.data, model.limits, is_tagged=arrival.headers.is_tagged)
        if parts is None:
            return SubmittedRequest(model, arrival)
        model.check_room(len(parts))
    except StatefulError as error:
        return SubmittedRequest(model, arrival._replace(refusal=error))
    headers = structs.replace(arrival.headers, is_tagged=False)  # an `id` of a part is the step's
    return _SubmittedBatch(model, [arrival._replace(data=one, headers=headers) for one in parts])


async def exchange(model: ModelFront, arrival: Arrival) -> AsyncGenerator[Response, None]:
    """Yield the responses to a request, which is submitted at the first step of the iteration; see `Submitted`."""
    async with contextlib.aclosing(submit(model, arrival)) as responses:
        async for response in responses:
            yield response
