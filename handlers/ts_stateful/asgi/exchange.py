"""One request at the front, from its arrival to its last response."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncGenerator

from ts_stateful.asgi.model import ModelFront
from ts_stateful.frontend.intake import Arrival
from ts_stateful.frontend.pending_response import Response
from ts_stateful.frontend.request_ids import new_request_id

__all__ = ["SubmittedRequest", "exchange"]


class SubmittedRequest:
    """A request that is submitted at once, and an iterator of its responses as they come.

    It has to be closed. Closing it before its end means that the client has disconnected. Events that nobody awaits wait in the
    mailbox, so a request that is not the next one of its stream costs no task.
    """

    def __init__(self, model: ModelFront, arrival: Arrival) -> None:
        self._intake, self._mailbox = model.intake, model.mailbox
        self._request_id = new_request_id()  # a client's own could be another client's
        self._pending = self._intake.accept(self._request_id, model.placed(arrival))
        self._is_closed = False

    def __aiter__(self) -> SubmittedRequest:
        return self

    async def __anext__(self) -> Response:
        pending = self._pending
        while not pending.done:
            if response := self._intake.attempt(self._request_id, pending.next):
                return response
            pending.add(await self._mailbox.take(self._request_id))
        raise StopAsyncIteration

    async def aclose(self) -> None:
        """Forget the request, which is dropped unless its answer is here. Idempotent."""
        if self._is_closed:
            return
        self._is_closed = True
        pending = self._pending
        if not pending.done:
            pending.add(self._mailbox.take_now(self._request_id))
            while self._intake.attempt(self._request_id, pending.next):
                pass
        self._intake.finish(pending) if pending.done else self._intake.drop(pending)


async def exchange(model: ModelFront, arrival: Arrival) -> AsyncGenerator[Response, None]:
    """Yield the responses to a request, which is submitted at the first step of the iteration; see `SubmittedRequest`."""
    async with contextlib.aclosing(SubmittedRequest(model, arrival)) as responses:
        async for response in responses:
            yield response
