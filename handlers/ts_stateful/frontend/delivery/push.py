"""The delivery of the sequence profile: push until done.

TorchServe calls once per batch, with at most one request per session, and calls again when all of them are answered. Responses
that are ready earlier are pushed. A message in which no row has more to come ends the batch. A row can thus end before the
others only in a message with a row that goes on.
"""

from __future__ import annotations

from typing import Any

from ts_stateful.clock import SYSTEM_CLOCK, Clock
from ts_stateful.frontend.delivery.torchserve_wire import Batch, push, reply
from ts_stateful.frontend.inbox import Inbox
from ts_stateful.frontend.intake import Intake
from ts_stateful.frontend.pending_response import PendingResponse, Response

__all__ = ["SequenceDelivery"]


class SequenceDelivery:
    """The answers to one batch after the other.

    TorchServe kills a worker that is silent for `responseTimeout`, and in this mode never restarts it. An empty message is sent
    after `heartbeat_s` of silence. The end of one row waits up to `hold_s` of silence for another row that goes on. Then an
    HTTP row goes on as a 200 although its status is not known yet.
    """

    def __init__(
        self,
        intake: Intake,
        inbox: Inbox,
        clock: Clock = SYSTEM_CLOCK,
        *,
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
            for pending in rows.values():
                self._intake.finish(pending) if pending.done else self._intake.drop(pending)

    def _serve(self, rows: dict[int, PendingResponse], context: Any) -> dict[int, Response]:
        """Push until every row is done; return the responses that end the batch."""
        ready: dict[int, Response] = {}
        open_rows = dict(rows)
        sent_at = self._clock.monotonic()
        while True:
            for idx, pending in open_rows.items():
                pending.add(self._inbox.take(pending.request_id))
                response = self._intake.attempt(pending.request_id, pending.next)
                if response is not None:
                    ready[idx] = response
            open_rows = {idx: pending for idx, pending in open_rows.items() if not pending.done}
            if not open_rows:
                return ready
            silent_s = self._clock.monotonic() - sent_at
            patience_s = self._hold_s if ready else self._heartbeat_s
            if (ready or silent_s >= patience_s) and self._carry(
                ready, open_rows, force=silent_s >= patience_s
            ):
                push(context, ready)
                for idx in ready.keys() - open_rows.keys():
                    del context.request_ids[idx]
                ready = {}
                sent_at = self._clock.monotonic()
            else:
                self._inbox.wait(patience_s - silent_s)

    def _carry(
        self, ready: dict[int, Response], open_rows: dict[int, PendingResponse], *, force: bool
    ) -> bool:
        """Return True if a row in `ready` goes on. If none does, add one that loses nothing, or any if forced."""
        if any(response.more for response in ready.values()):
            return True
        idx, pending = min(open_rows.items(), key=lambda item: _cost(item[1]))
        if _cost(pending) == _UNDECIDED and not force:
            return False
        ready[idx] = pending.begin()
        return True


_UNDECIDED = 3


def _cost(pending: PendingResponse) -> int:
    """Rate an empty response: 0 is free, 1 an early status line, 2 an empty message, 3 a status that may turn out wrong."""
    if not pending.is_http:
        return 2
    if pending.started:
        return 0
    return 1 if pending.accepted else _UNDECIDED
