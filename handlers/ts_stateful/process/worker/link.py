"""The worker's side of one engine: what is in flight there, through restarts.

Owns the requests that an engine has not answered yet: they are sent again when the engine comes back, so that every accepted
request gets exactly one terminal answer. Knows one engine; which request goes to which is `dispatch`'s.
"""

from __future__ import annotations

import logging
import socket
import threading
import time
from collections import deque
from collections.abc import Callable
from typing import Any

import msgspec

from ts_stateful.process import messages
from ts_stateful.process.channel import Channel
from ts_stateful.process.spec import EngineSpec
from ts_stateful.process.worker.fork_server import ForkServer
from ts_stateful.process.worker.in_flight import InFlight, Outstanding
from ts_stateful.process.worker.supervisor import EngineDied, Supervisor, Timeouts
from ts_stateful.process.worker.trial_lock import trial_lock_of
from ts_stateful.protocol.answers import encode
from ts_stateful.protocol.errors import (
    EngineUnavailable,
    InternalError,
    StatefulError,
    TooManySessions,
)
from ts_stateful.protocol.events import Event, EventKind, Submit
from ts_stateful.protocol.requests import Step
from ts_stateful.protocol.stats import Stats

__all__ = ["EngineLink"]

logger = logging.getLogger(__name__)

_BACK_OFF_S = (0.0, 0.5, 1.0, 2.0, 5.0)
_RESTARTING = "the engine is restarting; try again later"
_STOPPING = EngineUnavailable("TorchServe is about to stop; try again later", retry_after_s=1.0)


class EngineLink:
    """One engine, as the worker sees it.

    `on_attached` gets the ids of its sessions whenever a connection is made, `on_free` an id whose next step begins a sequence:
    the last one has ended there, or was refused.
    """

    def __init__(
        self,
        spec: EngineSpec,
        timeouts: Timeouts,
        fork_server: ForkServer,
        *,
        on_event: Callable[[Event], None],
        on_attached: Callable[[tuple[str, ...]], None],
        on_free: Callable[[str], None] = lambda session_id: None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._spec = spec
        self._supervisor = Supervisor(spec, timeouts.load_s, fork_server)
        self._timeouts = timeouts
        self._on_event = on_event
        self._on_attached = on_attached
        self._on_free = on_free
        self._clock = clock
        self._lock = threading.RLock()
        self._outstanding = Outstanding(self._send, trial_lock_of(spec))
        self._channel: Channel | None = None
        self._down_since: float | None = clock()
        self._last_sign = clock()
        self._closing = False
        self._attached = threading.Event()
        self._pings: deque[Callable[[], None]] = deque()  # not answered yet: what follows each
        self.stats = Stats()
        self.num_sessions = 0  # open there, as far as is known here

    @property
    def is_up(self) -> bool:
        """Whether there is a connection to the engine."""
        return self._channel is not None

    @property
    def takes_sessions(self) -> bool:
        """Whether there is an engine, and one that stays."""
        return self.is_up and not self._outstanding.engine_drains

    @property
    def load(self) -> float:
        """The share of the engine's places that are taken, as far as is known here."""
        return self.num_sessions / self._spec.max_sessions

    @property
    def num_in_flight(self) -> int:
        """Requests that the engine has not answered, and pulled turns of which it has not told the end."""
        return len(self._outstanding)

    @property
    def description(self) -> dict[str, Any]:
        """The engine for operators; no session is named."""
        return {
            "pid": self._supervisor.engine_pid,
            "device": self._spec.device,
            "up": self.is_up,
            **msgspec.structs.asdict(self.stats),
        }

    def connect(self) -> None:
        """Starts or finds the engine and attaches to it; raises `EngineDied` if it cannot."""
        self._attach(self._supervisor.connect())

    def find(self) -> bool:
        """Attaches to the engine if it runs already; returns whether it does."""
        if (connection := self._supervisor.find()) is not None:
            self._attach(connection)
            self._supervisor.prepare()
        return connection is not None

    def restart(self) -> None:
        """Starts the engine without waiting for it, again and again if need be."""
        threading.Thread(target=self._restart, name="engine-restart", daemon=True).start()

    def _attach(self, connection: socket.socket) -> None:
        self._attached.clear()
        channel: Channel = Channel(
            connection,
            at_engine=False,
            on_message=self._take,
            on_close=lambda: self._lost(channel),
        )
        with self._lock:
            self._channel = channel
            self._down_since = None
            self._last_sign = self._clock()
            channel.start()
            channel.send(messages.WorkerHello(self._spec.archive))
            self._outstanding.send_waiting()
        # Before anything is asked of it, its sessions must be known: they decide which engine is asked.
        self._attached.wait(self._timeouts.heartbeat_s)

    def submit(self, message: Submit, on_full: Callable[[], None] | None = None) -> None:
        """Sends a request, or keeps it until the engine is back.

        Where there is an `on_full`, it is called instead of an answer if the engine has no place for another session.
        """
        with self._lock:
            self.num_sessions += message.creates_session
            self._outstanding.add(InFlight(message, on_full))
            late = self._outstanding.late
        self._refuse(late, _STOPPING)

    def drop(self, request_id: str) -> bool:
        """Forgets a request whose client is gone; returns whether it was in flight here."""
        with self._lock:
            request = self._outstanding.remove(request_id)
            if request is not None and request.sent:
                self._say(messages.Drop(request_id))
            return request is not None

    def refresh(self, then: Callable[[], None]) -> None:
        """Asks the engine for its figures, and calls `then` when they are here, or at once if there is no engine."""
        with self._lock:
            if asked := self._say(messages.Ping()):
                self._pings.append(then)
        if not asked:
            then()

    def watch(self) -> None:
        """To be called every second or so: asks for a sign of life, kills an engine that gives none, and answers requests
        that have waited too long for one that restarts."""
        now = self._clock()
        with self._lock:
            self._outstanding.send_held()
            down_since, waiting = self._down_since, list(self._outstanding)
        if down_since is None:
            self.refresh(lambda: None)
            if now - self._last_sign > self._timeouts.heartbeat_s:
                logger.error("the engine shows no sign of life; it is killed")
                self._supervisor.kill()
        elif now - down_since > self._timeouts.restart_s:
            restart_s = self._timeouts.restart_s
            self._refuse(waiting, EngineUnavailable(_RESTARTING, retry_after_s=restart_s))

    def close(self) -> None:
        """Lets go of the engine, which waits for the next worker."""
        self._closing = True
        self._supervisor.stop()
        with self._lock:
            self._outstanding.close()
            if self._channel is not None:
                self._channel.close()

    def _send(self, request: InFlight) -> None:
        request.sent = self._say(request.to_send)

    def _say(self, message: Any) -> bool:
        """Whether there is an engine to say it to."""
        if (channel := self._channel) is not None:
            channel.send(message)
        return channel is not None

    def _take(self, message: Any) -> None:
        self._last_sign = self._clock()
        if isinstance(message, Event):
            self._hear(message)
        elif isinstance(message, messages.EngineHello):
            self._supervisor.engine_pid = message.engine_pid
            self.num_sessions = len(message.session_ids)
            self._on_attached(message.session_ids)
            self._attached.set()
        elif isinstance(message, messages.Draining):
            with self._lock:
                self._outstanding.leave(for_good=not message.successor)
                late = self._outstanding.late
            self._refuse(late, _STOPPING)
        elif isinstance(message, messages.SessionPlaced):
            self.num_sessions += len(message.session_ids)  # until it tells how many there are
            self._on_attached(message.session_ids)
            self._say(messages.SessionPlacedAck(message.request_id))
        elif isinstance(message, messages.SessionReleased):
            self._on_free(message.session_id)
        elif isinstance(message, messages.Pong):
            self.stats = message.stats
            with self._lock:
                # What was opened since the ping is not in this number; until it is answered, the own count is better.
                if not any(request.message.creates_session for request in self._outstanding):
                    self.num_sessions = message.stats.sessions_open
                then = self._pings.popleft() if self._pings else None
            if then is not None:
                then()

    def _hear(self, event: Event) -> None:
        with self._lock:
            request = self._outstanding.get(event.request_id)
            if request is None:
                return
            request.progressed(event)
            not_opened = request.message.creates_session and event.status != 200
            if event.ends:
                self._outstanding.remove(event.request_id)
                self.num_sessions -= not_opened
            elif event.token_ids:
                self._outstanding.cleared(request)
            for_worker = event.kind in (EventKind.PROGRESS, EventKind.OVER) or request.answered
            request.answered |= event.more
        if for_worker:
            return
        command = request.message.command
        # Behind a first step that the model failed on, those that were meant to follow it must not begin a sequence.
        refused = not_opened and event.status != InternalError.status
        if isinstance(command, Step) and command.session_id and (refused or event.closed):
            self._on_free(command.session_id)
            if self._spec.shared:
                self._say(messages.SessionReleased(command.session_id))
        if event.status == TooManySessions.status and request.on_full is not None:
            request.on_full()
        else:
            self._on_event(event)

    def _lost(self, channel: Channel) -> None:
        with self._lock:
            if self._closing or channel is not self._channel:
                return
            self._channel = None
            self._attached.set()  # who waits for it need not: it will not answer any more
            self._down_since = self._clock()
            self.num_sessions = 0
            self.stats = Stats()
            unanswered, self._pings = self._pings, deque()
            doomed = self._outstanding.engine_died()
            late = self._outstanding.late
        for then in unanswered:
            then()
        logger.warning("the engine is gone with %d requests in flight", len(self._outstanding))
        self._refuse(doomed, InternalError("the engine died again while it worked on this request"))
        self._refuse(late, _STOPPING)
        self.restart()

    def _restart(self) -> None:
        self._supervisor.lost()
        for attempt in range(10**9):
            time.sleep(_BACK_OFF_S[min(attempt, len(_BACK_OFF_S) - 1)])
            if self._closing or self._outstanding.for_good:
                return
            try:
                self.connect()
            except (EngineDied, OSError) as error:  # there may be no memory for a process
                logger.error("the engine does not start: %s", error)
                continue
            logger.info("the engine is back")
            return

    def _refuse(self, requests: list[InFlight], error: StatefulError) -> None:
        for request in requests:
            request_id = request.message.request_id
            with self._lock:
                known = self._outstanding.remove(request_id) is not None
            if known and not request.answered:
                body = encode(error.to_body())
                self._on_event(Event(request_id, EventKind.LAST, body, status=error.status))
