"""The delivery of the continuous profile: collect per call.

TorchServe sends every request in flight again in every batch. A call accepts the new ones, waits for events, and answers the
requests that have some. It always returns within milliseconds.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from functools import partial
from typing import Any

from ts_stateful.clock import SYSTEM_CLOCK, Clock
from ts_stateful.frontend.delivery.torchserve_wire import Batch, reply
from ts_stateful.frontend.inbox import Inbox
from ts_stateful.frontend.intake import Intake
from ts_stateful.frontend.pending_response import ClientKind, PendingResponse, Response

__all__ = ["RUNG", "ContinuousDelivery", "Pace"]

logger = logging.getLogger(__name__)

_HEAVY_BYTES = 65_536
_LIGHT_BYTES = 1024  # a full batch of bodies of this size is not heavy
_CROWDED_BYTES = 16_000_000  # a call with bodies of this size takes longer than it may wait
_DESCRIBED_PAUSE_S = 1.0


@dataclass(frozen=True)
class Pace:
    """Times of the calls, in seconds.

    A new request joins between two calls, so a call waits for `wait_s` at most. Every call costs TorchServe's frontend work.
    While nothing happens, calls thus wait longer and longer, up to `patient_wait_s`. They wait that long from the start while
    bodies are big: the body of a request without a response is sent again with every call.

    TorchServe detects a disconnected client only when it has something to send. The first response settles the status. A
    running request gets it, perhaps empty, when it is `settle_s` old. With a body that is not light it gets one at once. An
    error before then has its own status. From then on a request is never without a response for longer than `probe_s`.

    While the bodies that are sent again are so big that calls become slow for all clients, a request with a heavy body gets its
    first response at that age in any case.
    """

    wait_s: float = 0.005
    patient_wait_s: float = 0.02
    settle_s: float = 0.25
    probe_s: float = 0.25


RUNG = Pace(wait_s=0.1, patient_wait_s=0.1)
"""Where a request that waits for the end of a call rings the inbox."""


class ContinuousDelivery:
    """The requests in flight between calls."""

    def __init__(
        self, intake: Intake, inbox: Inbox, pace: Pace = Pace(), clock: Clock = SYSTEM_CLOCK
    ) -> None:
        self._intake = intake
        self._inbox = inbox
        self._pace = pace
        self._clock = clock
        self._quiet_s = pace.wait_s
        self._pending: dict[str, PendingResponse] = {}
        self._described: str | None = None

    def __len__(self) -> int:
        """Return the number of requests in flight."""
        return len(self._pending)

    def handle(self, data: Batch, context: Any) -> list[bytes]:
        """See `Delivery`."""
        present = set(context.request_ids.values())
        for request_id in self._pending.keys() - present:  # the only sign of a disconnected client
            self._intake.drop(self._pending.pop(request_id))
        if self._described in present:
            self._clock.sleep(_DESCRIBED_PAUSE_S)
        new = [idx for idx, name in context.request_ids.items() if name not in self._pending]
        for idx in new:
            # After its first response, a row comes without headers and body: read them once.
            request_id, headers = context.request_ids[idx], context.get_all_request_header(idx)
            self._pending[request_id] = self._intake.take(request_id, data[idx], headers)
        until = self._clock.monotonic() + self._patience_s(quiet=not new)
        while True:
            rung = self._inbox.wait(until - self._clock.monotonic())
            responses = self._responses(context.request_ids)
            if responses or rung or self._clock.monotonic() >= until:
                return reply(context, responses, len(data))

    def _responses(self, rows: dict[int, str]) -> dict[int, Response]:
        is_crowded = self._num_resent > _CROWDED_BYTES
        responses = {}
        for idx, request_id in rows.items():
            response = self._collect(self._pending[request_id], is_crowded=is_crowded)
            if response is not None:
                responses[idx] = response
        return responses

    @property
    def _num_resent(self) -> int:
        """The bytes of the bodies that TorchServe sends with every call."""
        return sum(each.num_bytes for each in self._pending.values() if not each.started)

    def _collect(self, pending: PendingResponse, *, is_crowded: bool) -> Response | None:
        events = self._inbox.take(pending.request_id)
        pending.add(events)
        is_light = pending.num_bytes <= _LIGHT_BYTES
        is_old = self._intake.age_s(pending) >= self._pace.settle_s
        now = self._clock.monotonic()
        is_silent = now - pending.sent_at >= self._pace.probe_s
        hold = is_silent and (is_old or not is_light)
        take = partial(pending.next, hold=hold, late=True)
        response = self._intake.attempt(pending.request_id, take)
        is_burden = is_crowded and pending.num_bytes > _HEAVY_BYTES
        if response is None and is_burden and is_old and pending.is_http and not pending.started:
            response = pending.begin()
        if response is not None:
            pending.sent_at = now
        if pending.done:
            del self._pending[pending.request_id]
            self._intake.finish(pending)
            if pending.kind is ClientKind.DESCRIBE:
                self._note_description(pending.request_id)
        return response

    def _note_description(self, request_id: str) -> None:
        # TorchServe's queue keeps a description at its head: it comes again forever, and nothing else comes. A worker cannot
        # end that, only spare the processor and the log.
        if request_id != self._described:
            logger.error(
                "TorchServe repeats this customized description and passes no other request on: restart TorchServe or"
                " register the model again; do not request customized=true in this profile"
            )
        self._described = request_id

    def _patience_s(self, *, quiet: bool) -> float:
        if self._num_resent > _HEAVY_BYTES:
            return self._pace.patient_wait_s
        wait_s = self._quiet_s if quiet else self._pace.wait_s
        # The next call waits this long, if no request joins.
        self._quiet_s = min(2 * wait_s, self._pace.patient_wait_s)
        return wait_s
