"""A frontend and an engine in one process, asked as over HTTP."""

from __future__ import annotations

import itertools
import json
from collections.abc import Mapping
from typing import Any, NamedTuple

from tests.support.fake_dispatcher import NAMES, FixedSeeds
from tests.support.harness import Harness
from ts_stateful.clock import Clock
from ts_stateful.config.access import HeaderAuth
from ts_stateful.frontend.admission import Admission
from ts_stateful.frontend.audit import AuditLog
from ts_stateful.frontend.dialects import Dialects
from ts_stateful.frontend.inbox import Inbox
from ts_stateful.frontend.intake import Intake
from ts_stateful.frontend.parsing.headers import HeaderReader
from ts_stateful.frontend.parsing.requests import RequestParser
from ts_stateful.frontend.pending_response import PendingResponse
from ts_stateful.language.network.load import Model
from ts_stateful.principals.authenticator import Authenticator, ProxyHeader
from ts_stateful.protocol.events import Event, Submit
from ts_stateful.protocol.profile import Profile
from ts_stateful.store.base import Store

__all__ = ["PRINCIPAL", "Answered", "FrontedEngine"]

PRINCIPAL = "X-Principal"


class Answered(NamedTuple):
    """What a client received: the status, the session headers, the documents."""

    status: int
    headers: dict[str, str]
    documents: list[Any]

    @property
    def document(self) -> dict[str, Any]:
        """The only document."""
        (document,) = self.documents
        assert isinstance(document, dict)
        return document

    @property
    def code(self) -> str:
        """The code of the error, or an empty text."""
        error = self.document.get("error", {})
        return str(error.get("code", "")) if isinstance(error, dict) else str(error)


class _Engine(Harness):
    """An engine whose events go to a mailbox. `num_events` counts them."""

    mailbox: Inbox | None = None
    num_events = 0

    def emit(self, event: Event) -> None:
        """See `Harness`."""
        super().emit(event)
        self.num_events += 1
        if self.mailbox is not None:
            self.mailbox.post(event)


class FrontedEngine:
    """One server without processes: requests are HTTP bodies and headers, answers what TorchServe would send."""

    def __init__(
        self,
        model: Model,
        store: Store | None = None,
        *,
        authenticator: Authenticator | None = None,
        audit: AuditLog | None = None,
        clock: Clock | None = None,
        config: dict[str, Any] | None = None,
    ) -> None:
        self.harness = _Engine(model, config, store=store)
        self.mailbox = self.harness.mailbox = Inbox()
        self.submitted: list[Submit] = []
        self.bytes_in_flight = 0
        self._numbers = itertools.count()
        authenticator = authenticator or ProxyHeader(HeaderAuth(header=PRINCIPAL))
        parser = RequestParser(Profile.CONTINUOUS, NAMES, Dialects("chat"), rng=FixedSeeds())
        admission = Admission(authenticator, audit=audit)
        self.intake = Intake(
            self, self.mailbox, parser, HeaderReader(NAMES), admission, clock or self.harness.clock
        )

    def start(self) -> None:
        """Do nothing."""

    def bytes_of(self, principal: str | None) -> int:
        """Return 0: requests are answered one after the other."""
        return 0

    def describe(self, request_id: str) -> None:
        """Do nothing."""

    def drop(self, request_id: str) -> None:
        """Drop a request in the engine."""
        self.harness.engine.drop(request_id)

    def submit(self, message: Submit) -> None:
        """Hand a request to the engine."""
        self.submitted.append(message)
        self.harness.engine.submit(message)

    def ask(self, principal: str | None, body: Any, path: str = "", **headers: str) -> Answered:
        """Send a request of a principal and return its answer."""
        named = {} if principal is None else {PRINCIPAL: principal}
        return self.send({"body": json.dumps(body).encode()}, {**named, **headers}, path)

    def send(
        self,
        data: Mapping[str, Any],
        headers: Mapping[str, str],
        path: str = "",
        *,
        grpc: bool = False,
    ) -> Answered:
        """Send a request as TorchServe hands it over."""
        request_id = f"r{next(self._numbers)}"
        marks = {} if grpc else {"Host": "x", "url_path": path, "Content-Type": "application/json"}
        pending = self.intake.take(request_id, data, {**marks, **headers})
        self.harness.run()
        pending.add(self.mailbox.take(request_id))
        return self._answered(pending)

    def _answered(self, pending: PendingResponse) -> Answered:
        bodies, found = b"", None
        while (response := pending.next()) is not None:
            found = found or response
            bodies += response.body
        assert found is not None
        self.intake.finish(pending)
        return Answered(found.status, found.headers, _documents(bodies))


def _documents(body: bytes) -> list[Any]:
    if not body.startswith(b"data: "):
        return [json.loads(body)]
    lines = [line.removeprefix(b"data: ") for line in body.split(b"\n\n") if line]
    return [json.loads(line) for line in lines if line != b"[DONE]"]
