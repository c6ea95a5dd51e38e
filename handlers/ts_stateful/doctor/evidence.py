"""Observations of a model from outside: TorchServe's description of it, and its answers to harmless requests."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TypeVar

from ts_stateful.client.documents import parse
from ts_stateful.client.errors import ClientError, DeadlineExceeded, ServerRefused
from ts_stateful.client.management import Description, Management, Readiness
from ts_stateful.client.transports.transport import Transport
from ts_stateful.protocol.answers import Closed, HelloAnswer, Opened, SessionInfo
from ts_stateful.protocol.errors import (
    InvalidRequest,
    KeysUnavailable,
    SessionError,
    StatefulError,
    Unauthenticated,
)
from ts_stateful.protocol.requests import Close, Command, Continue, Hello, Info, Open

__all__ = ["PROBE_SESSION", "Evidence", "ExaminedModel", "Failure", "tried"]

# In the sequence profile TorchServe keeps a place for every id, so all probes use this one, also deploy/kubernetes/hello.py.
# An id from before a worker's death hangs for ever, as the sessions of that time do.
PROBE_SESSION = "ts-stateful-doctor"
_NEW_IDS = 2  # TorchServe loses the first new id after a worker's death
_SESSION_S = 60.0

_Answer = TypeVar("_Answer")
Failure = ClientError | StatefulError


@dataclass(frozen=True)
class ExaminedModel:
    """A model, the connections to examine it, and the time that each answer may take. An `Examiner`."""

    name: str
    management: Management
    transport: Transport
    timeout_s: float
    metrics_url: str = ""  # of a front without TorchServe

    def examine(self, before: Evidence | None = None) -> Evidence:
        """Examine the model from TorchServe down to the store, as far as each part answers.

        If no answer came `before` either, use no more new ids: each keeps a place until it has been idle.
        """
        hello = self._ask(Hello(session_id=PROBE_SESSION), HelloAnswer)
        answers = isinstance(hello, HelloAnswer)
        seen = self._from_outside(None if answers else self._worker(PROBE_SESSION))
        if seen.worker is not None:
            if before is not None and isinstance(before.worker, DeadlineExceeded):
                return replace(seen, new_ids=before.new_ids)
            return replace(seen, new_ids=self._new_ids(seen))
        if not answers:
            return replace(seen, hello=hello)
        session, is_saved = self._session()
        return replace(seen, hello=hello, session=session, is_saved=is_saved)

    def _from_outside(self, worker: Failure | None) -> Evidence:
        """Read TorchServe's description of the model, and look for its workers' processes on this machine."""
        management = self.management
        readiness = tried(management.readiness)
        if isinstance(readiness, Readiness):
            version = tried(lambda: management.version(self.name))
            return Evidence(
                self.name,
                readiness,
                worker,
                version=version if isinstance(version, str) else None,
                has_metrics=tried(lambda: management.measures(self.metrics_url, self.name)) is True,
            )
        description = tried(lambda: management.describe(self.name))
        models: tuple[str, ...] = ()
        if isinstance(description, ClientError):
            with contextlib.suppress(ClientError):
                models = tuple(management.models())
        workers = description.workers if isinstance(description, Description) else ()
        runs = [(worker.status, management.runs(worker)) for worker in workers]
        is_starting = any(process for status, process in runs if status != "READY")
        is_unseen = any(process is None for _, process in runs)
        return Evidence(
            self.name,
            description,
            worker,
            models=models,
            is_starting=is_starting or (None if is_unseen else False),
            has_exited=bool(runs) and all(process is False for _, process in runs),
        )

    def _new_ids(self, seen: Evidence) -> bool | None:
        """Return True if new ids get answers while known ones hang; None if that is no question."""
        description = seen.description
        hangs = isinstance(seen.worker, DeadlineExceeded) and not seen.has_exited
        if not (hangs and isinstance(description, Description)):
            return None
        if not (description.stateful and description.is_ready):
            return None
        return any(self._worker(None) is None for _ in range(_NEW_IDS))

    def _ask(self, command: Command, answer: type[_Answer]) -> _Answer | Failure:
        return tried(lambda: parse(self.transport.call(command, self.timeout_s), answer))

    def _worker(self, session_id: str | None) -> Failure | None:
        # The worker itself refuses this command, so no engine takes part. Without a principal it refuses any. The refusal
        # counts in the server's metrics, so one that answers is not asked.
        refused = self._ask(Continue(session_id=session_id, turn=0), HelloAnswer)
        answers = InvalidRequest | Unauthenticated | KeysUnavailable | HelloAnswer
        return None if isinstance(refused, answers) else refused

    def _session(self) -> tuple[Failure | None, bool | None]:
        """Open a session, which goes to the store, and close it."""
        opened = self._ask(Open(session_id=PROBE_SESSION, ttl_s=_SESSION_S), Opened)
        if isinstance(opened, InvalidRequest | Unauthenticated):
            # The model has no sessions, or takes steps, or the doctor has no principal.
            return None, None
        # It may be open already: from an earlier run, or by a doctor at another node of the same store.
        if not isinstance(opened, Opened | SessionError):
            return opened, None
        info = self._ask(Info(session_id=PROBE_SESSION), SessionInfo)
        self._ask(Close(session_id=PROBE_SESSION), Closed)
        if isinstance(info, SessionInfo):
            return None, info.saved
        return None if isinstance(info, SessionError) else info, None


@dataclass(frozen=True)
class Evidence:
    """Observations of a model. None: not examined."""

    model: str
    description: Description | Readiness | Failure  # `Readiness`: of a front without TorchServe
    worker: Failure | None  # why its worker does not answer; None: it does
    new_ids: bool | None = None  # True: it answers under ids that are new to TorchServe
    models: tuple[str, ...] = ()  # the registered models, if this one is missing
    # True: a worker that is not ready has a process. None: it runs on another machine, so that is unknown.
    is_starting: bool | None = False
    has_exited: bool = False  # no worker has a process; TorchServe may still call it READY
    hello: HelloAnswer | Failure | None = None
    session: Failure | None = None  # why no session can be opened
    is_saved: bool | None = None  # True: the store has the opened session
    version: str | None = None  # of the model of a front without TorchServe
    has_metrics: bool = False  # likewise
    # The worker before was lost, too, perhaps to the same queue. None: not by the processes alone, see `torchserve.guard`.
    was_replaced: bool | None = None

    @property
    def is_unregistered(self) -> bool:
        """Return True if TorchServe has no such model."""
        refused = self.description
        return isinstance(refused, ServerRefused) and refused.is_without_model


def tried(ask: Callable[[], _Answer]) -> _Answer | Failure:
    """Return the answer, or the error instead of it."""
    try:
        return ask()
    except (ClientError, StatefulError) as error:
        return error
