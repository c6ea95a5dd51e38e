"""TorchServe as `ts-stateful doctor` sees it, in memory: its management API, and what becomes of requests to one model.

Behaves as TorchServe 0.12.0 was seen to do when workers die, are scaled and registered.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import NoReturn

from tests.support.fake_sessions import FakeSessions
from ts_stateful.client.documents import encode, refusal
from ts_stateful.client.errors import (
    ClientError,
    DeadlineExceeded,
    ServerRefused,
    ServerUnreachable,
)
from ts_stateful.client.management import Description, Management, ModelWorker, Readiness
from ts_stateful.client.transports.transport import Events, Transport
from ts_stateful.protocol.errors import StatefulError
from ts_stateful.protocol.requests import Command, Prompt

__all__ = ["FakeManagement", "FakeModel", "FakeTransport"]


class FakeModel:
    """A model in one of the profiles. `model_api` is `enable_model_api`."""

    def __init__(self, profile: str = "continuous", *, model_api: bool = False) -> None:
        self.profile = profile
        self.model_api = model_api
        self.sessions = FakeSessions(profile)
        self.registered = True
        self.is_up = True
        self.workers = ["READY"]
        self.stuck = False  # by a customized description
        self.is_unnoticed = False  # that the worker is dead, which TorchServe calls READY
        self.refuses: ClientError | StatefulError | None = None  # why it answers nothing
        self.deeds: list[str] = []
        self.num_refused = 0  # requests, as the server's metrics count them
        self._met: set[str] = set()  # ids that a sequence batch of the frontend polls
        self._orphans: set[str] = set()  # those whose batch is gone
        self._swallows = False

    def kill(self) -> None:
        """The worker dies."""
        self.workers = ["UNLOADING"]
        if self.profile == "continuous":
            self.workers = ["READY"]
        self._orphan()

    def _orphan(self) -> None:
        if self.profile == "sequence":
            self._orphans |= self._met
            self._swallows = True

    def scale(self, num_workers: int) -> None:
        """As the management API does."""
        self.deeds.append(f"scale {num_workers}")
        self.workers = ["READY"] * num_workers
        self._orphan()

    def register(self) -> None:
        """As the management API does: nothing of the frontend's past is left."""
        self.deeds.append("register")
        self.registered, self.workers = True, ["READY"]
        self.stuck = self.is_unnoticed = False
        self._met, self._orphans, self._swallows = set(), set(), False

    def ask(self, document: bytes, session_id: str | None) -> bytes:
        """What comes back to a request."""
        if not self.is_up:
            raise ServerUnreachable("connection refused")
        if self.refuses is not None:
            raise self.refuses
        if not self.registered:
            raise _refused(404, "ModelNotFoundException")
        if not self.workers:
            raise _refused(503, "ServiceUnavailableException")
        lost = "READY" not in self.workers and self.profile != "async"
        if lost or self.stuck or self.is_unnoticed or self._hangs(session_id):
            raise DeadlineExceeded("no answer within 5 s")
        try:
            request = self.sessions.read(document, session_id)
            fault = self.sessions.fault_for(request["type"])
            if fault is not None:
                raise fault.error or DeadlineExceeded("no answer within 5 s")
            (answer,) = self.sessions.answers(request, pull=False)
            if request["type"] == "close":  # the real one can be opened again
                del self.sessions.sessions[request["session_id"]]
                self.sessions.closed.clear()
        except StatefulError as error:
            self.num_refused += 1
            raise refusal(error.status, json.dumps(error.to_body()).encode()) from None
        return json.dumps(answer).encode()

    def _hangs(self, session_id: str | None) -> bool:
        if self.profile != "sequence":
            return False
        name = session_id or f"minted-{len(self._met)}"
        if name not in self._met and self._swallows:
            self._swallows = False
            self._orphans.add(name)
        self._met.add(name)
        return name in self._orphans


class FakeTransport(Transport):
    """Requests to that model."""

    def __init__(self, model: FakeModel) -> None:
        self.max_body_bytes = 1000
        self._model = model

    def call(
        self, command: Command, timeout_s: float, raw: Mapping[str, bytes] | None = None
    ) -> bytes:
        """See `Transport`."""
        return self._model.ask(encode(command), command.session_id)

    def pipeline(self, session_id: str, timeout_s: float) -> NoReturn:
        """See `Transport`."""
        raise NotImplementedError

    def stream(self, command: Prompt, timeout_s: float, stall_s: float) -> Events:
        """See `Transport`."""
        raise NotImplementedError

    def close(self) -> None:
        """See `Transport`."""


class FakeManagement(Management):
    """The management API of that model."""

    def __init__(self, model: FakeModel) -> None:
        super().__init__("http://127.0.0.1:1")
        self._model = model
        self.is_reachable = True
        self.front: Readiness | None = None  # of a front without TorchServe

    def readiness(self) -> Readiness | None:
        """See `Management`."""
        if not self.is_reachable or not self._model.is_up:
            raise ServerUnreachable("connection refused")
        return self.front

    def version(self, model: str) -> str:
        """See `Management`."""
        return "1.0"

    def measures(self, url: str, model: str) -> bool:
        """See `Management`."""
        if not url:
            raise ServerUnreachable("connection refused")
        return True

    def models(self) -> list[str]:
        """See `Management`."""
        return ["chat"]

    def describe(self, model: str) -> Description:
        """See `Management`."""
        if not self.is_reachable or not self._model.is_up:
            raise ServerUnreachable("connection refused")
        if model != "chat" or not self._model.registered:
            raise _refused(404, "ModelNotFoundException")
        return Description(
            model_name="chat",
            model_url="chat.mar",
            min_workers=1,
            max_workers=1,
            batch_size=1 if self._model.profile == "async" else 64,
            continuous_batching=self._model.profile == "continuous",
            stateful=self._model.profile == "sequence",
            workers=tuple(
                ModelWorker(str(9000 + index), status, pid=2**22 + 1)
                for index, status in enumerate(self._model.workers)
            ),
        )

    def runs(self, worker: ModelWorker) -> bool | None:
        """See `Management`."""
        return worker.status == "READY" and not self._model.is_unnoticed if self.is_local else None

    def scale(self, model: str, num_workers: int, timeout_s: float) -> None:
        """See `Management`."""
        self._model.scale(num_workers)

    def unregister(self, model: str) -> None:
        """See `Management`."""
        if not self._model.model_api:
            raise _refused(405, "MethodNotAllowedException")
        self._model.registered = False

    def register(self, model: str, url: str, timeout_s: float) -> None:
        """See `Management`."""
        assert (model, url, self._model.registered) == ("chat", "chat.mar", False)
        self._model.register()


def _refused(status: int, kind: str) -> ServerRefused:
    return ServerRefused(f"{kind} (status {status})", status=status, kind=kind)
