"""Push until done: the delivery of the sequence profile.

TorchServe calls once per batch, with at most one request per session, and calls again when all of them are answered. What
becomes ready before is pushed. The batch ends with the first message in which no row has more to come, so a row may end before
the others only in a message that carries another row on.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from ts_stateful.frontend.delivery.delivery import Batch
from ts_stateful.frontend.delivery.torchserve_wire import push, reply
from ts_stateful.frontend.inbox import Inbox
from ts_stateful.frontend.intake import Intake
from ts_stateful.frontend.pending_response import PendingResponse, Response

__all__ = ["SequenceDelivery"]


class SequenceDelivery:
    """Answers batches, one after the other.

    TorchServe kills a worker that says nothing for `responseTimeout`, and in this mode never revives it: after `heartbeat_s`
    of silence something empty is sent. The end of one row waits for another to go on with until nothing was sent for `hold_s`;
    then an HTTP row goes on as a 200 although its status is not known yet.
    """

    def __init__(
        self,
        intake: Intake,
        inbox: Inbox,
        *,
        clock: Callable[[], float] = time.monotonic,
        heartbeat_s: float = 20.0,
        hold_s: float = 1.0,
    ) -> None:
        self._intake = intake
        self._inbox = inbox
        self._clock = clock
        self._heartbeat_s = heartbeat_s
        self._hold_s = hold_s

    def handle(self, data: Batch, context: Any) -> list[bytes]:
        """See `Delivery`. Returns when every row is answered."""
        rows = {
            idx: self._intake.take(request_id, data[idx], context.get_all_request_header(idx))
            for idx, request_id in context.request_ids.items()
        }
        try:
            return reply(context, self._serve(rows, context), len(data))
        finally:
            for row in rows.values():
                self._intake.finish(row) if row.done else self._intake.drop(row)

    def _serve(self, rows: dict[int, PendingResponse], context: Any) -> dict[int, Response]:
        """Pushes until no row is open; returns the responses that end the batch."""
        ready: dict[int, Response] = {}
        open_rows = dict(rows)
        sent_at = self._clock()
        while True:
            for idx, row in open_rows.items():
                response = self._collect(row)
                if response is not None:
                    ready[idx] = response
            open_rows = {idx: row for idx, row in open_rows.items() if not row.done}
            if not open_rows:
                return ready
            silent_s = self._clock() - sent_at
            patience_s = self._hold_s if ready else self._heartbeat_s
            if (ready or silent_s >= patience_s) and self._carry(
                ready, open_rows, force=silent_s >= patience_s
            ):
                push(context, ready)
                for idx in ready.keys() - open_rows.keys():
                    del context.request_ids[idx]
                ready = {}
                sent_at = self._clock()
            else:
                self._inbox.wait(patience_s - silent_s)

    def _collect(self, row: PendingResponse) -> Response | None:
        row.add(self._inbox.take(row.request_id))
        return self._intake.attempt(row.request_id, row.next)

    def _carry(
        self, ready: dict[int, Response], open_rows: dict[int, PendingResponse], *, force: bool
    ) -> bool:
        """Whether some row in `ready` has more to come; adds one if there is one that loses nothing, or if forced."""
        if any(response.more for response in ready.values()):
            return True
        carriers = sorted(open_rows.items(), key=lambda item: _cost(item[1]))
        idx, row = carriers[0]
        if _cost(row) == _UNDECIDED and not force:
            return False
        ready[idx] = row.begin()
        return True


_UNDECIDED = 3


def _cost(row: PendingResponse) -> int:
    """What an empty response costs: nothing, an early status line, an empty message, a status that may turn out wrong."""
    if not row.is_http:
        return 2
    if row.started:
        return 0
    return 1 if row.accepted else _UNDECIDED
