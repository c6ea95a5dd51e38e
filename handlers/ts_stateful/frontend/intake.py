"""Takes requests in: parses them, hands them to the dispatcher, and answers those that are refused.

Owns the rule that one row can never fail another: whatever goes wrong with a row becomes the answer of that row. Knows nothing
of batches.
"""

from __future__ import annotations

import hashlib
import logging
import time
from collections.abc import Callable, Mapping
from typing import Any, Protocol, TypeVar

from lru import LRU

from ts_stateful.frontend.inbox import Mailbox
from ts_stateful.frontend.parsing.headers import HeaderNames, RowHeaders
from ts_stateful.frontend.parsing.requests import RequestParser
from ts_stateful.frontend.pending_response import PendingResponse, RowKind
from ts_stateful.protocol.answers import encode
from ts_stateful.protocol.defects import defect
from ts_stateful.protocol.errors import StatefulError
from ts_stateful.protocol.events import Event, EventKind, Submit

__all__ = ["Dispatching", "Intake"]

logger = logging.getLogger(__name__)
_T = TypeVar("_T")
_MAX_MINTED = 4096  # ids, those that came last: more than one TorchServe has sequences


class Dispatching(Protocol):
    """What the frontend needs of the dispatcher. `submit` never blocks; events come to the mailbox."""

    def start(self) -> None:
        """Returns when the engines answer."""

    def submit(self, message: Submit) -> None:
        """Sends a request to the engine of its session."""

    def describe(self, request_id: str) -> None:
        """Answers with the figures of the engines."""

    def drop(self, request_id: str) -> None:
        """The client is gone: no more events."""


class Intake:
    """Turns rows into requests in flight. `clock` is monotonic."""

    def __init__(
        self,
        dispatcher: Dispatching,
        mailbox: Mailbox,
        parser: RequestParser,
        names: HeaderNames,
        *,
        minting: bool = False,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._dispatcher = dispatcher
        self._mailbox = mailbox
        self._parser = parser
        self._names = names
        self._minting = minting
        self._minted: LRU[str, None] = LRU(_MAX_MINTED)
        self._clock = clock

    def take(
        self, request_id: str, data: Mapping[str, Any], headers: Mapping[str, Any]
    ) -> PendingResponse:
        """Takes a new request; its events, one of them the last, go to the mailbox."""
        read = self._read(headers)
        kind = RowKind.HTTP if read.is_http else RowKind.GRPC
        row = PendingResponse(
            request_id,
            RowKind.DESCRIBE if read.is_describe else kind,
            self._names,
            num_bytes=sum(map(_num_bytes, data.values())),
            taken_at=self._clock(),
        )
        self._mailbox.expect(request_id)
        self.attempt(request_id, lambda: self._submit(row, data, read))
        return row

    def attempt(self, request_id: str, step: Callable[[], _T]) -> _T | None:
        """Does a step of a row's work; if it fails, the row's last event is that error, and None is returned."""
        try:
            return step()
        except StatefulError as error:
            refusal = error
        except Exception as error:
            refusal = defect(error, f"request {_short(request_id)}")
        self._mailbox.post(
            Event(request_id, EventKind.LAST, encode(refusal.to_body()), status=refusal.status)
        )
        return None

    def age_s(self, row: PendingResponse) -> float:
        """Seconds since a row was taken in."""
        return self._clock() - row.taken_at

    def finish(self, row: PendingResponse) -> None:
        """The last response of a row is on its way."""
        self._mailbox.forget(row.request_id)
        logger.debug(
            "request %s: %d, %.1f ms, %d bytes in, %d bytes out",
            _short(row.request_id),
            row.status,
            1000 * self.age_s(row),
            row.num_bytes,
            row.num_sent,
        )

    def drop(self, row: PendingResponse) -> None:
        """The client of a row is gone, or nobody can be answered any more."""
        self._mailbox.forget(row.request_id)
        self._dispatcher.drop(row.request_id)
        logger.info("request %s: dropped, its client is gone", _short(row.request_id))

    def _read(self, headers: Mapping[str, Any]) -> RowHeaders:
        read = RowHeaders.read(headers, self._names, minting=self._minting)
        if read.minted_id is None:
            return read
        if read.minted_id in self._minted:
            return read.sent_back()
        self._minted[read.minted_id] = None
        return read

    def _submit(self, row: PendingResponse, data: Mapping[str, Any], headers: RowHeaders) -> None:
        if headers.is_describe:
            self._dispatcher.describe(row.request_id)
            return
        message = self._parser.parse(row.request_id, data, headers, row.speak)
        if isinstance(message, Event):
            self._mailbox.post(message)
            return
        row.streams = message.streams
        row.names_session = not message.ephemeral
        self._dispatcher.submit(message)


def _short(request_id: str) -> str:
    return hashlib.sha256(request_id.encode()).hexdigest()[:12]


def _num_bytes(value: object) -> int:
    return len(value) if isinstance(value, str | bytes | bytearray) else 0
