"""One request at the front, from its arrival to its last response."""

from __future__ import annotations

from collections.abc import AsyncGenerator

from ts_stateful.asgi.model import ModelFront
from ts_stateful.frontend.intake import Arrival
from ts_stateful.frontend.pending_response import Response
from ts_stateful.frontend.request_ids import new_request_id

__all__ = ["exchange"]


async def exchange(model: ModelFront, arrival: Arrival) -> AsyncGenerator[Response, None]:
    """Yield the responses to a request as they come.

    The request is submitted at the first step of the iteration. Closing the iterator before its end means that the client has
    disconnected.
    """
    intake, mailbox = model.intake, model.mailbox
    request_id = new_request_id()  # a client's own could be another client's
    pending = intake.accept(request_id, model.placed(arrival))
    try:
        while not pending.done:
            pending.add(await mailbox.take(request_id))
            while response := intake.attempt(request_id, pending.next):
                yield response
    finally:
        intake.finish(pending) if pending.done else intake.drop(pending)
