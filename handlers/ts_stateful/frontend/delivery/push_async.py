"""The delivery of the async profile: TorchServe starts a coroutine per request, which pushes its own responses."""

from __future__ import annotations

import asyncio
import contextlib
from typing import Any

from ts_stateful.frontend.delivery.delivery import Batch
from ts_stateful.frontend.delivery.torchserve_wire import push
from ts_stateful.frontend.intake import Intake
from ts_stateful.frontend.pending_response import PendingResponse, Response
from ts_stateful.protocol.events import Event

__all__ = ["AsyncDelivery", "AsyncMailbox"]


class AsyncMailbox:
    """Queues of events from the dispatcher's reader thread to coroutines of one loop. A `Mailbox`."""

    def __init__(self) -> None:
        self._loop: asyncio.AbstractEventLoop | None = None
        self._queues: dict[str, asyncio.Queue[Event]] = {}

    def __len__(self) -> int:
        """Return the number of expected requests."""
        return len(self._queues)

    def expect(self, request_id: str) -> None:
        """See `Mailbox`; called in the loop."""
        self._loop = asyncio.get_running_loop()
        self._queues.setdefault(request_id, asyncio.Queue())

    def post(self, event: Event) -> None:
        """See `Mailbox`."""
        if self._loop is not None:
            # A closed loop has no client left to answer; the reader thread must survive it.
            with contextlib.suppress(RuntimeError):
                self._loop.call_soon_threadsafe(self._put, event)

    def forget(self, request_id: str) -> None:
        """See `Mailbox`; called in the loop."""
        self._queues.pop(request_id, None)

    async def get(self, request_id: str) -> Event:
        """Wait for the next event of an expected request."""
        return await self._queues[request_id].get()

    def _put(self, event: Event) -> None:
        queue = self._queues.get(event.request_id)
        if queue is not None:
            queue.put_nowait(event)


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
                pending.add([await self._mailbox.get(request_id)])
                response = self._intake.attempt(request_id, pending.next)
                if response is not None:
                    _send(context, idx, pending, response)
        finally:
            self._intake.finish(pending) if pending.done else self._intake.drop(pending)


def _send(context: Any, idx: int, pending: PendingResponse, response: Response) -> None:
    push(context, {idx: response})
    if pending.is_http and response.more is None:
        # That was a whole HTTP response. The frontend frees the request only on "false", which a first response must not
        # carry. Its HTTP encoder discards the empty end after a whole response.
        push(context, {idx: Response(more=False)})
