"""The delivery of the async profile: TorchServe starts a coroutine per request, which pushes its own responses."""

from __future__ import annotations

import asyncio
from typing import Any

from ts_stateful.frontend.async_mailbox import AsyncMailbox
from ts_stateful.frontend.delivery.torchserve_wire import Batch, push
from ts_stateful.frontend.intake import Intake
from ts_stateful.frontend.pending_response import PendingResponse, Response

__all__ = ["AsyncDelivery"]


class AsyncDelivery:
    """The answers to requests, each from its own coroutine."""

    def __init__(self, intake: Intake, mailbox: AsyncMailbox) -> None:
        self._intake = intake
        self._mailbox = mailbox

    async def handle(self, data: Batch, context: Any) -> list[bytes]:
        """Send the whole answer, then end as cancelled.

        A thread of TorchServe would send a returned value, on the same socket and without a lock: two long messages would be
        mixed. After a cancellation it sends nothing, so all messages leave from the loop's thread.
        """
        requests = list(context.request_ids.items())
        await asyncio.gather(
            *(self._serve(idx, request_id, data[idx], context) for idx, request_id in requests)
        )
        raise asyncio.CancelledError("answered")

    async def _serve(self, idx: int, request_id: str, data: Any, context: Any) -> None:
        pending = self._intake.take(request_id, data, context.get_all_request_header(idx))
        try:
            while not pending.done:
                pending.add(await self._mailbox.take(request_id))
                while response := self._intake.attempt(request_id, pending.next):
                    _send(context, idx, pending, response)
        finally:
            self._intake.finish(pending) if pending.done else self._intake.drop(pending)


def _send(context: Any, idx: int, pending: PendingResponse, response: Response) -> None:
    push(context, {idx: response})
    if pending.is_http and response.more is None:
        # That was a whole HTTP response. The frontend frees the request only on "false", which a first response must not
        # carry. Its HTTP encoder discards the empty end after a whole response.
        push(context, {idx: Response(more=False)})
