"""Collect per call: the delivery of the continuous profile.

TorchServe sends every request in flight again in every batch. A call takes in the new ones, waits a moment for events, answers
the rows that have some and leaves the others out; it returns within milliseconds, always.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from functools import partial
from typing import Any

from ts_stateful.frontend.delivery.delivery import Batch
from ts_stateful.frontend.delivery.torchserve_wire import reply
from ts_stateful.frontend.inbox import Inbox
from ts_stateful.frontend.intake import Intake
from ts_stateful.frontend.pending_response import PendingResponse, Response, RowKind

__all__ = ["ContinuousDelivery"]

logger = logging.getLogger(__name__)

_HEAVY_BYTES = 65_536
_LIGHT_BYTES = 1024  # as many rows of these as are in a batch are not heavy together
_DESCRIBED_PAUSE_S = 1.0


class ContinuousDelivery:
    """Holds the rows in flight between calls.

    A new request joins between two calls, so a call waits for `wait_s` at most. Every call costs TorchServe's frontend work,
    though: while nothing happens calls wait longer and longer, up to `patient_wait_s`; and that long from the beginning if
    bodies are big, since the body of a row without a response is sent again with every call.

    The first response settles the status, and only behind it a client that goes away is noticed. So a request gets one, empty
    if need be, when it runs and is `settle_s` old, or at once if its body is not light: what fails sooner has its own status.
    """

    def __init__(
        self,
        intake: Intake,
        inbox: Inbox,
        *,
        wait_s: float = 0.005,
        patient_wait_s: float = 0.02,
        settle_s: float = 0.25,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._intake = intake
        self._inbox = inbox
        self._wait_s = wait_s
        self._patient_wait_s = patient_wait_s
        self._settle_s = settle_s
        self._sleep = sleep
        self._quiet_s = wait_s
        self._rows: dict[str, PendingResponse] = {}
        self._described: str | None = None

    def __len__(self) -> int:
        """The number of rows in flight."""
        return len(self._rows)

    def handle(self, data: Batch, context: Any) -> list[bytes]:
        """See `Delivery`."""
        present = set(context.request_ids.values())
        self._drop_missing(present)
        if self._described in present:
            self._sleep(_DESCRIBED_PAUSE_S)
        new = [idx for idx, name in context.request_ids.items() if name not in self._rows]
        for idx in new:
            # Headers and body of a row that has had a response are not sent again, so they are read once.
            request_id, headers = context.request_ids[idx], context.get_all_request_header(idx)
            self._rows[request_id] = self._intake.take(request_id, data[idx], headers)
        self._inbox.wait(self._patience_s(quiet=not new))
        responses = {}
        for idx, request_id in context.request_ids.items():
            response = self._collect(self._rows[request_id])
            if response is not None:
                responses[idx] = response
        return reply(context, responses, len(data))

    def _drop_missing(self, present: set[str]) -> None:
        # Nothing else tells that a client has gone.
        for request_id in self._rows.keys() - present:
            self._intake.drop(self._rows.pop(request_id))

    def _collect(self, row: PendingResponse) -> Response | None:
        events = self._inbox.take(row.request_id)
        if events:
            self._quiet_s = self._wait_s
        row.add(events)
        hold = row.num_bytes > _LIGHT_BYTES or self._intake.age_s(row) >= self._settle_s
        response = self._intake.attempt(row.request_id, partial(row.next, hold=hold))
        if row.done:
            del self._rows[row.request_id]
            self._intake.finish(row)
            if row.kind is RowKind.DESCRIBE:
                self._note_description(row.request_id)
        return response

    def _note_description(self, request_id: str) -> None:
        # TorchServe's queue gives a description out and keeps it at its head, so it comes again for ever and nothing else
        # does. Nothing that a worker can do ends that; it can only spare the processor and the log.
        if request_id != self._described:
            logger.error(
                "TorchServe is stuck behind this customized description and passes nothing else on:"
                " restart it or register the model anew; do not ask with customized=true in this profile"
            )
        self._described = request_id

    def _patience_s(self, *, quiet: bool) -> float:
        resent = sum(row.num_bytes for row in self._rows.values() if not row.started)
        if resent > _HEAVY_BYTES:
            return self._patient_wait_s
        wait_s = self._quiet_s if quiet else self._wait_s
        self._quiet_s = min(2 * wait_s, self._patient_wait_s)  # for the next call, if nothing comes
        return wait_s
