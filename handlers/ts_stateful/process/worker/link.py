"""A worker's link to one engine, through restarts: every accepted request gets exactly one terminal answer."""

from __future__ import annotations

import logging
import socket
import threading
from collections.abc import Callable
from concurrent.futures import Future
from itertools import chain, repeat
from typing import Any, Protocol

import msgspec

from ts_stateful.clock import SYSTEM_CLOCK, Clock
from ts_stateful.config.schema import EngineConfig
from ts_stateful.process import messages
from ts_stateful.process.channel import Channel
from ts_stateful.process.load_progress import LoadStep, read_load_step
from ts_stateful.process.spec import EngineSpec
from ts_stateful.process.worker.engine_calls import EngineCalls
from ts_stateful.process.worker.fork_server import ForkServer
from ts_stateful.process.worker.in_flight import InFlight, InFlightRequests
from ts_stateful.process.worker.supervisor import EngineDied, Supervisor
from ts_stateful.protocol.chat import Respond
from ts_stateful.protocol.errors import EngineUnavailable, InternalError, StatefulError
from ts_stateful.protocol.events import Event, Submit
from ts_stateful.protocol.operations import Operation, Outcome
from ts_stateful.protocol.requests import Step
from ts_stateful.protocol.stats import Stats

__all__ = ["EngineLink", "EngineListener"]

logger = logging.getLogger(__name__)

_BACK_OFF_S = (0.0, 0.5, 1.0, 2.0, 5.0)
_RESTARTING = "the engine is restarting; try again later"
_STOPPING = EngineUnavailable("the server is about to stop; try again later", retry_after_s=1.0)


class EngineListener(Protocol):
    """The receiver of an engine's events, from any thread. Engines are named by their indexes."""

    def on_event(self, event: Event) -> None:
        """Handle an event of a request."""

    def on_placed(self, engine: int, session_ids: tuple[str, ...]) -> None:
        """Handle the sessions that the engine has, on each connection."""

    def on_released(self, session_id: str) -> None:
        """Handle a session id whose next step begins a sequence, because the last one has ended or was refused."""

    def on_full(self, engine: int, message: Submit, next_engines: tuple[int, ...]) -> None:
        """Handle a request that the engine has no room for, while others have not been tried; it is to be taken there."""


class EngineLink:
    """One engine, as the worker sees it."""

    def __init__(
        self,
        spec: EngineSpec,
        settings: EngineConfig,
        fork_server: ForkServer,
        listener: EngineListener,
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        self.index = spec.index
        self._spec = spec
        self.supervisor = Supervisor(spec, settings.load_timeout_sec, fork_server, clock)
        self._settings = settings
        self._listener = listener
        self._clock = clock
        self._lock = threading.RLock()
        self.in_flight = InFlightRequests(self)  # unanswered ones, and pulled turns that still run
        self._channel: Channel | None = None
        self._down_since: float | None = clock.monotonic()
        self._silent_pings = 0  # not seconds: both processes may have been frozen
        self._closing = self._lacks_thread = False
        self._attached, self._calls = threading.Event(), EngineCalls(self)
        self.stats = Stats()
        self.num_sessions = 0  # in the engine, as far as this worker can count them

    @property
    def is_up(self) -> bool:
        """Return True while there is a connection to the engine."""
        return self._channel is not None

    @property
    def load_step(self) -> LoadStep | None:
        """The step at which the engine loads its model; None if it has loaded, or has not begun."""
        return None if self.is_up else read_load_step(self._spec.path("loading"))

    @property
    def takes_sessions(self) -> bool:
        """Return True if the engine runs and is not draining."""
        return self.is_up and not self.in_flight.draining

    @property
    def load(self) -> float:
        """The share of the engine's session slots that are in use."""
        return self.num_sessions / self._spec.max_sessions

    @property
    def description(self) -> dict[str, Any]:
        """The engine's state for operators; no session is named."""
        return {
            "pid": self.supervisor.engine_pid,
            "device": self._spec.device,
            "up": self.is_up,
            **msgspec.structs.asdict(self.stats),
        }

    def connect(self) -> None:
        """Find or start the engine and attach to it. Raises `EngineDied` if it does not start."""
        self._attach(self.supervisor.connect())

    def find(self) -> bool:
        """Attach to the engine if it already runs; return False if it does not."""
        if (connection := self.supervisor.find()) is not None:
            self._attach(connection)
            self.supervisor.prepare()
        return connection is not None

    def restart(self) -> None:
        """Start the engine in the background, with as many attempts as it needs; without a thread, `watch` tries again."""
        try:
            threading.Thread(target=self._restart, name="engine-restart", daemon=True).start()
        except RuntimeError as error:  # the limit of threads is reached
            logger.error("cannot start the engine yet: %s", error)
            self._lacks_thread = True

    def _attach(self, connection: socket.socket) -> None:
        self._attached.clear()
        with self._lock:
            if self._closing:  # since the supervisor has connected
                connection.close()
                return
            channel = Channel(connection, self, at_engine=False)
            channel.start()
            self._channel, self._down_since, self._silent_pings = channel, None, 0
            channel.send(messages.WorkerHello(self._spec.model_dir))
            self.in_flight.send_waiting()
        # The engine's sessions decide where requests go, so they must be known before the first request.
        self._attached.wait(self._settings.heartbeat_sec)

    def submit(self, message: Submit, next_engines: tuple[int, ...] = ()) -> None:
        """Send a request, or keep it until the engine is back.

        If the engine has no room for another session, the listener's `on_full` gets the request and `next_engines`, if any.
        """
        with self._lock:
            self.num_sessions += message.creates_session
            self.in_flight.add(InFlight(message, next_engines))
            stranded = self.in_flight.stranded
        self._refuse(stranded, _STOPPING)

    def drop(self, request_id: str) -> bool:
        """Forget a request whose client has disconnected; return False if it is not in flight here."""
        with self._lock:
            request = self.in_flight.get(request_id)
            if request is not None and not request.message.background:  # which goes on
                self.in_flight.remove(request_id)
                if request.sent:
                    self.send(messages.Drop(request_id))
            return request is not None

    def take(self, request_id: str) -> bool:
        """Remove a request that goes to another engine, or is refused; return False if it was dropped meanwhile."""
        with self._lock:
            return self.in_flight.remove(request_id) is not None

    def refresh(self, then: Callable[[], None]) -> None:
        """Request the engine's stats; call `then` after they arrive, or at once if there is no engine."""
        self._calls.ping(then)

    def administer(self, operation: Operation) -> Future[Outcome]:
        """Ask the engine for an operation; the result is `EngineUnavailable` if it exits first, or does not run."""
        return self._calls.ask(operation)

    def watch(self) -> None:
        """Ping the engine, kill it if it hangs, and refuse requests that waited too long for a restart; call every second."""
        if self._lacks_thread:
            self._lacks_thread = False
            self.restart()
        if (down_since := self._down_since) is None:
            self.refresh(lambda: None)
            self._silent_pings += 1
            if self._silent_pings > self._settings.heartbeat_sec + 1:
                logger.error("no response to %d pings (heartbeatSec)", self._silent_pings)
                self.supervisor.kill()
        elif self._clock.monotonic() - down_since > (s := self._settings.restart_deadline_sec):
            self._refuse(list(self.in_flight), EngineUnavailable(_RESTARTING, retry_after_s=s))

    def close(self) -> None:
        """Disconnect from the engine, which waits for the next worker, and refuse what it has not answered."""
        self._closing = True
        self.supervisor.stop()
        with self._lock:
            self.in_flight.drain(for_good=True)
            if self._channel is not None:
                self._channel.close()
                self._channel = None
        self._calls.lost()
        self._refuse(list(self.in_flight), _STOPPING)

    def send(self, message: Any) -> bool:
        """Send a message; return False if there is no engine."""
        if (channel := self._channel) is not None:
            channel.send(message)
        return channel is not None

    def on_message(self, channel: Channel, message: Any) -> None:
        """See `ChannelOwner`."""
        self._silent_pings = 0
        if isinstance(message, Event):
            self._handle_event(message)
        elif isinstance(message, messages.EngineHello):
            self.supervisor.engine_pid = message.engine_pid
            self.num_sessions, self.stats = len(message.session_ids), message.stats
            self._listener.on_placed(self.index, message.session_ids)
            self._attached.set()
        elif isinstance(message, messages.Draining):
            with self._lock:
                self.in_flight.drain(for_good=not message.successor)
                stranded = self.in_flight.stranded
            self._refuse(stranded, _STOPPING)
        elif isinstance(message, messages.Pong):
            self.stats = message.stats
            with self._lock:
                # The engine's number lacks sessions created since the ping; until they are answered, the own count is better.
                if not any(request.message.creates_session for request in self.in_flight):
                    self.num_sessions = message.stats.sessions_open
            self._calls.pinged()
        elif isinstance(message, messages.AdminAnswer):
            self._calls.answered(message)

    def _handle_event(self, event: Event) -> None:
        with self._lock:
            if (request := self.in_flight.get(event.request_id)) is None:
                return
            is_for_client = request.record(event)
            is_full = is_for_client and request.may_move(event)
            not_created = request.message.creates_session and event.status != 200
            if event.ends:
                self.num_sessions -= not_created
                if not is_full:
                    self.in_flight.remove(event.request_id)
            elif event.token_ids:
                self.in_flight.clear(request)
            is_over = event.closed and not self.in_flight.has_step_of(event.session_id)
        if not is_for_client:
            return
        command = request.message.command
        if isinstance(command, Respond) and event.session_id == command.new_session_id:
            self._listener.on_placed(self.index, (str(event.session_id),))
        # If the model failed on a first step, the steps that follow it must not begin a sequence.
        refused = not_created and event.status != InternalError.status
        if isinstance(command, Step) and command.session_id and (refused or is_over):
            self._listener.on_released(command.session_id)
        if is_full:
            self._listener.on_full(self.index, request.message, request.next_engines)
        else:
            self._listener.on_event(event)

    def on_close(self, channel: Channel) -> None:
        """See `ChannelOwner`."""
        with self._lock:
            if self._closing or channel is not self._channel:
                return
            self._channel, self._down_since = None, self._clock.monotonic()
            self._attached.set()  # the engine will not answer any more
            self.num_sessions, self.stats = 0, self.stats.counts
            rejected = self.in_flight.engine_died()
            stranded = self.in_flight.stranded
        self._calls.lost()
        logger.warning("the engine exited with %d requests in flight", len(self.in_flight))
        self._refuse(rejected, InternalError("the engine crashed repeatedly on this request"))
        self._refuse(stranded, _STOPPING)
        self.restart()

    def _restart(self) -> None:
        self.supervisor.lost()
        for back_off_s in chain(_BACK_OFF_S, repeat(_BACK_OFF_S[-1])):
            self._clock.sleep(back_off_s)
            if self._closing or self.in_flight.for_good:
                return
            try:
                self.connect()
                break
            except (EngineDied, OSError) as error:  # the system may be out of memory, or of threads
                logger.error("cannot start the engine: %s", error)
        logger.info("the engine is back")

    def _refuse(self, requests: list[InFlight], error: StatefulError) -> None:
        for request in requests:
            request_id = request.message.request_id
            if self.take(request_id) and not request.answered:
                self._listener.on_event(Event.refusal(request_id, error))
