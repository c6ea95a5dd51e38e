"""What can be seen of a model from outside: what TorchServe says of it, and what comes back when it is asked.

Owns the requests that find it out, which harm nothing. What they mean is `diagnosis`'s.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TypeVar

from ts_stateful.client.documents import parse
from ts_stateful.client.errors import ClientError, DeadlineExceeded, ServerRefused
from ts_stateful.client.management import Description, Management
from ts_stateful.client.transports.transport import Transport
from ts_stateful.protocol.answers import Closed, HelloAnswer, Opened, SessionInfo
from ts_stateful.protocol.errors import InvalidRequest, SessionError, StatefulError
from ts_stateful.protocol.requests import Close, Command, Continue, Hello, Info, Open

__all__ = ["PROBE_SESSION", "Evidence", "gather"]

# In the sequence profile TorchServe keeps a place for every id that it meets: the same one is asked under each time, also by
# deploy/kubernetes/hello.py. An id that was there when a worker was lost hangs for ever, as its sessions do.
PROBE_SESSION = "ts-stateful-doctor"
_NEW_IDS = 2  # TorchServe loses the first new id behind a worker that died
_SESSION_S = 60.0

_Answer = TypeVar("_Answer")
Failure = ClientError | StatefulError


@dataclass(frozen=True)
class Evidence:
    """What was seen. None: there was no sense in asking."""

    model: str
    description: Description | Failure
    worker: Failure | None  # why its worker does not answer; None: it does
    new_ids: bool | None = None  # whether it answers under ids that TorchServe has not met before
    models: tuple[str, ...] = ()  # what else is registered, where the model is not
    # Whether a worker that is not ready has a process; None: it is on another machine, where that cannot be seen.
    is_starting: bool | None = False
    is_gone: bool = False  # no worker has a process, whatever TorchServe says
    hello: HelloAnswer | Failure | None = None
    session: Failure | None = None  # why none can be opened
    is_saved: bool | None = None  # whether the store has what was opened

    @property
    def is_unregistered(self) -> bool:
        """Whether TorchServe has no such model."""
        refused = self.description
        return isinstance(refused, ServerRefused) and refused.is_without_model


def gather(
    model: str,
    management: Management,
    transport: Transport,
    timeout_s: float,
    before: Evidence | None = None,
) -> Evidence:
    """Asks, in an order in which every question makes sense; each answer may take `timeout_s` seconds.

    Where nothing was answered `before` either, no more ids are spent on it: each holds a place until it has idled.
    """
    probe = _Probe(transport, timeout_s)
    seen = _from_outside(model, management, probe.worker(PROBE_SESSION))
    if seen.worker is not None:
        if before is not None and isinstance(before.worker, DeadlineExceeded):
            return replace(seen, new_ids=before.new_ids)
        return replace(seen, new_ids=_new_ids(probe, seen))
    hello = probe.ask(Hello(session_id=PROBE_SESSION), HelloAnswer)
    if not isinstance(hello, HelloAnswer):
        return replace(seen, hello=hello)
    session, is_saved = probe.session()
    return replace(seen, hello=hello, session=session, is_saved=is_saved)


def _from_outside(model: str, management: Management, worker: Failure | None) -> Evidence:
    """What TorchServe says of the model, and this machine of its workers' processes."""
    description = _tried(lambda: management.describe(model))
    models: tuple[str, ...] = ()
    if isinstance(description, ClientError):
        with contextlib.suppress(ClientError):
            models = tuple(management.models())
    workers = description.workers if isinstance(description, Description) else ()
    runs = [(worker.status, management.runs(worker)) for worker in workers]
    is_starting = any(process for status, process in runs if status != "READY")
    is_unseen = any(process is None for _, process in runs)
    return Evidence(
        model,
        description,
        worker,
        models=models,
        is_starting=is_starting or (None if is_unseen else False),
        is_gone=bool(runs) and all(process is False for _, process in runs),
    )


def _new_ids(probe: _Probe, seen: Evidence) -> bool | None:
    """Whether ids are served that TorchServe has not met before, where those that it has met hang."""
    description = seen.description
    if not isinstance(description, Description) or not isinstance(seen.worker, DeadlineExceeded):
        return None
    if not description.stateful or not description.is_ready or seen.is_gone:
        return None
    return any(probe.worker(None) is None for _ in range(_NEW_IDS))


class _Probe:
    def __init__(self, transport: Transport, timeout_s: float) -> None:
        self._transport = transport
        self._timeout_s = timeout_s

    def ask(self, command: Command, answer: type[_Answer]) -> _Answer | Failure:
        return _tried(lambda: parse(self._transport.call(command, self._timeout_s), answer))

    def worker(self, session_id: str | None) -> Failure | None:
        # The worker itself refuses it, so its answer says nothing of engines.
        refused = self.ask(Continue(session_id=session_id, turn=0), HelloAnswer)
        return None if isinstance(refused, InvalidRequest | HelloAnswer) else refused

    def session(self) -> tuple[Failure | None, bool | None]:
        """Opens a session, which is written to the store, and closes it."""
        opened = self.ask(Open(session_id=PROBE_SESSION, ttl_s=_SESSION_S), Opened)
        if isinstance(opened, InvalidRequest):  # the model keeps none, or takes steps
            return None, None
        # One of this name may be open already, left from an earlier time or by a doctor at another node of the same store.
        if not isinstance(opened, Opened | SessionError):
            return opened, None
        info = self.ask(Info(session_id=PROBE_SESSION), SessionInfo)
        self.ask(Close(session_id=PROBE_SESSION), Closed)
        if isinstance(info, SessionInfo):
            return None, info.saved
        return None if isinstance(info, SessionError) else info, None


def _tried(ask: Callable[[], _Answer]) -> _Answer | Failure:
    try:
        return ask()
    except (ClientError, StatefulError) as error:
        return error
