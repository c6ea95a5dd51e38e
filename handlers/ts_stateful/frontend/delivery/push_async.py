"""Push from a coroutine: the delivery of the async profile.

TorchServe starts a coroutine per request and lets any number run side by side; each sends what it has when it has it.
"""

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
    """Events by request, from the dispatcher's reader thread to coroutines of one loop. A `Mailbox`."""

    def __init__(self) -> None:
        self._loop: asyncio.AbstractEventLoop | None = None
        self._queues: dict[str, asyncio.Queue[Event]] = {}

    def __len__(self) -> int:
        """The number of requests that are expected."""
        return len(self._queues)

    def expect(self, request_id: str) -> None:
        """See `Mailbox`; called in the loop."""
        self._loop = asyncio.get_running_loop()
        self._queues.setdefault(request_id, asyncio.Queue())

    def post(self, event: Event) -> None:
        """See `Mailbox`."""
        if self._loop is not None:
            # A loop that is closed has nobody left to answer; the reader thread must not die of it.
            with contextlib.suppress(RuntimeError):
                self._loop.call_soon_threadsafe(self._put, event)

    def forget(self, request_id: str) -> None:
        """See `Mailbox`; called in the loop."""
        self._queues.pop(request_id, None)

    async def get(self, request_id: str) -> Event:
        """The next event of a request that is expected."""
        return await self._queues[request_id].get()

    def _put(self, event: Event) -> None:
        queue = self._queues.get(event.request_id)
        if queue is not None:
            queue.put_nowait(event)


class AsyncDelivery:
    """Answers requests, each in its own coroutine."""

    def __init__(self, intake: Intake, mailbox: AsyncMailbox) -> None:
        self._intake = intake
        self._mailbox = mailbox

    async def handle(self, data: Batch, context: Any) -> list[bytes]:
        """Sends the whole answer itself, then ends as cancelled.

        What a coroutine returns would be sent by a thread of TorchServe's, on the same socket and without a lock: two long
        messages would be mixed. A cancelled coroutine makes it send nothing, so all messages leave from the loop's thread.
        """
        requests = list(context.request_ids.items())
        await asyncio.gather(
            *(self._serve(idx, request_id, data[idx], context) for idx, request_id in requests)
        )
        raise asyncio.CancelledError("answered")

    async def _serve(self, idx: int, request_id: str, data: Any, context: Any) -> None:
        row = self._intake.take(request_id, data, context.get_all_request_header(idx))
        try:
            while not row.done:
                row.add([await self._mailbox.get(request_id)])
                response = self._intake.attempt(request_id, row.next)
                if response is not None:
                    _send(context, idx, row, response)
        finally:
            self._intake.finish(row) if row.done else self._intake.drop(row)


def _send(context: Any, idx: int, row: PendingResponse, response: Response) -> None:
    push(context, {idx: response})
    if row.is_http and response.more is None:
        # That was a whole HTTP response. The frontend lets go of the request only on "false", which a first response must not
        # carry; the empty end behind a whole one is discarded by its HTTP encoder.
        push(context, {idx: Response(more=False)})
