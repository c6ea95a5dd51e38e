"""Dispatch of requests to the engines of one worker."""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Protocol

from lru import LRU
from msgspec import structs

from ts_stateful.config.schema import Config
from ts_stateful.process.archive import identity_of
from ts_stateful.process.spec import EngineSpec, runtime_folder
from ts_stateful.process.worker.choices import Choices
from ts_stateful.process.worker.devices import devices
from ts_stateful.process.worker.fork_server import ForkServer
from ts_stateful.process.worker.link import EngineLink
from ts_stateful.process.worker.store_alarm import StoreAlarm
from ts_stateful.protocol.answers import encode
from ts_stateful.protocol.errors import SessionExists
from ts_stateful.protocol.events import Event, EventKind, Submit
from ts_stateful.protocol.requests import Fork, Step
from ts_stateful.protocol.stats import Stats

__all__ = ["Dispatcher", "EventReceiver", "ServedModel", "StatsPublisher"]

logger = logging.getLogger(__name__)

_WATCH_S = 1.0
# Sessions; ended ones included, because their engine can report how they ended.
_REMEMBERED = 200_000


class EventReceiver(Protocol):
    """The receiver of the events of requests."""

    def post(self, event: Event) -> None:
        """Take an event, from any thread. A request that was not dropped gets exactly one `LAST`."""


class StatsPublisher(Protocol):
    """A sink of stats."""

    def publish(self, stats: Stats) -> None:
        """Take the stats of all engines together; called about every second."""


@dataclass(frozen=True)
class ServedModel:
    """A model as TorchServe has registered it, with its parsed and its raw configuration."""

    config: Config
    document: Mapping[str, Any]
    name: str
    folder: Path  # of the unpacked archive
    frontend_pid: int = field(default_factory=os.getppid)  # TorchServe's process


class Dispatcher:
    """The engines of one worker.

    Several dispatchers may share a `fork_server`; by default each has its own.
    """

    def __init__(
        self,
        model: ServedModel,
        events: EventReceiver,
        publishers: Sequence[StatsPublisher] = (),
        fork_server: ForkServer | None = None,
    ) -> None:
        self._max_sessions = model.config.frontend.max_sessions
        self._events, self._publishers = events, (*publishers, StoreAlarm())
        self._by_session: LRU[str, EngineLink] = LRU(_REMEMBERED)
        self._by_affinity: LRU[tuple[str | None, str], EngineLink] = LRU(_REMEMBERED)
        self._choices = Choices()
        self._moving = threading.RLock()  # held while a request is in flight to no engine
        self._stop = threading.Event()
        self._fork_server = ForkServer()
        settings = model.config.engine
        forks = fork_server or self._fork_server
        self._links = [EngineLink(spec, settings, forks, self) for spec in _specs(model)]

    def start(self) -> None:
        """Start the engines, and return when all of them answer.

        If an earlier worker has left some, return when these answer: their sessions must not wait for the others to load.

        Raises:
            EngineDied: no engine runs, and one does not start.
        """
        with ThreadPoolExecutor(len(self._links)) as pool:
            found = list(pool.map(EngineLink.find, self._links))
            if not any(found):
                list(pool.map(EngineLink.connect, self._links))
        for link in self._links:
            if not link.is_up:
                link.restart()
        threading.Thread(target=self._watch, name="engine-watch", daemon=True).start()

    def submit(self, message: Submit) -> None:
        """Send a request to the engine of its session; never blocks. One for several replies becomes several.

        Raises:
            SessionExists: the id of a fork belongs to another engine than its source.
        """
        for one in self._choices.split(message) if message.choices > 1 else [message]:
            self._submit(one)

    def _submit(self, message: Submit) -> None:
        command = message.command
        known = None if command.session_id is None else self._by_session.get(command.session_id)
        for name in message.affinity[1:]:
            known = known or self._by_affinity.get((message.principal, name))
        if known is not None and not message.creates_session and not isinstance(command, Fork):
            known.submit(message)
            if isinstance(command, Step) and command.session_id is not None:
                # The end of a sequence may have come meanwhile.
                self._by_session[command.session_id] = known
            return
        # The engine that has had a session of this id comes first: it can answer even if that session has ended.
        up = [link for link in self._links if link.takes_sessions] or self._links
        if known is not None and len(message.affinity) > 2:  # of a text: many may begin alike
            fewest = min(len(link.in_flight) for link in up)
            known = known if len(known.in_flight) <= 1 + 2 * fewest else None
        best = sorted(up, key=lambda link: (link is not known, link.load))
        engines = tuple(link.index for link in best)
        if isinstance(command, Fork):
            self._fork(message, command.new_session_id, known or best[0])
        elif isinstance(command, Step) and not message.creates_session:
            # The first message of an unknown sequence begins it. A known sequence that is missing was lost, or has ended.
            self._place(structs.replace(message, creates_session=True), engines)
        else:
            self._place(message, engines)

    @property
    def bytes_in_flight(self) -> int:
        """See `HeldBytes`."""
        return sum(link.in_flight.num_bytes for link in self._links)

    def bytes_of(self, principal: str | None) -> int:
        """See `HeldBytes`."""
        return sum(link.in_flight.bytes_of(principal) for link in self._links)

    @property
    def engines_up(self) -> list[bool]:
        """Return True for each engine that there is a connection to."""
        return [link.is_up for link in self._links]

    @property
    def links(self) -> Sequence[EngineLink]:
        """The engines, for operators; requests go through `submit`."""
        return self._links

    @property
    def stats_by_engine(self) -> list[Stats]:
        """Return the stats that each engine has reported last, with the requests in flight to it."""
        return [
            structs.replace(link.stats, requests_in_flight=len(link.in_flight))
            for link in self._links
        ]

    @property
    def restarts_by_engine(self) -> list[tuple[int, float]]:
        """Return the number of restarts of each engine, and the seconds without it."""
        return [(link.supervisor.num_lost, link.supervisor.recovery_s) for link in self._links]

    def describe(self, request_id: str) -> None:
        """Answer with the stats of all engines together and of each, after all engines have reported them."""
        missing = iter(range(len(self._links) - 1, -1, -1))

        def reported() -> None:
            if next(missing) == 0:
                self._describe(request_id)

        for link in self._links:
            link.refresh(reported)

    def _describe(self, request_id: str) -> None:
        document = {
            "sessions_max": self._max_sessions,
            **structs.asdict(self._stats()),
            "engines": [link.description for link in self._links],
        }
        self._events.post(Event(request_id, EventKind.LAST, encode(document)))

    def drop(self, request_id: str) -> None:
        """Forget a request whose client has disconnected; it gets no more events."""
        for one in self._choices.drop(request_id):
            self._forget(one)

    def _forget(self, request_id: str) -> None:
        with self._moving:
            any(link.drop(request_id) for link in self._links)

    def close(self) -> None:
        """Disconnect from the engines, which wait for the next worker."""
        self._stop.set()
        for link in self._links:
            link.close()
        self._fork_server.close()

    def _fork(self, message: Submit, new_session_id: str | None, link: EngineLink) -> None:
        # A fork must be on the engine of its source. Only the other engine can report if its session of this id is open.
        if new_session_id and self._by_session.setdefault(new_session_id, link) is not link:
            raise SessionExists(
                "the id is, or was, that of a session on another engine; choose another one",
                field="new_session_id",
            )
        if message.command.session_id is not None:
            self._by_session[message.command.session_id] = link
        link.submit(message)

    def on_event(self, event: Event) -> None:
        """See `EngineListener`."""
        merged, unwanted = self._choices.merge(event)
        if merged is not None:
            self._events.post(merged)
        for request_id in unwanted:
            self._forget(request_id)

    def on_placed(self, engine: int, session_ids: tuple[str, ...]) -> None:
        """See `EngineListener`."""
        for session_id in session_ids:
            self._by_session[session_id] = self._links[engine]

    def on_released(self, session_id: str) -> None:
        """See `EngineListener`."""
        self._by_session.pop(session_id, None)

    def on_full(self, engine: int, message: Submit, next_engines: tuple[int, ...]) -> None:
        """See `EngineListener`."""
        with self._moving:
            if self._links[engine].take(message.request_id):
                self._place(message, next_engines)

    def _place(self, message: Submit, next_engines: tuple[int, ...]) -> None:
        """Send a request to the first of these engines; if it would create a session there and has no room, to the next."""
        first, *others = next_engines
        link = self._links[first]
        if message.command.session_id is not None:
            self._by_session[message.command.session_id] = link
        for name in message.affinity[:1]:
            self._by_affinity[message.principal, name] = link
        if message.creates_session and message.may_wait == bool(others):
            message = structs.replace(message, may_wait=not others)
        link.submit(message, tuple(others) if message.creates_session else ())

    def _watch(self) -> None:
        failing: set[int] = set()
        while not self._stop.wait(_WATCH_S):
            stats = self._stats()
            calls: list[Callable[[], None]] = [link.watch for link in self._links]
            calls += [partial(publisher.publish, stats) for publisher in self._publishers]
            for index, call in enumerate(calls):
                try:
                    call()
                    failing.discard(index)
                except Exception:  # a thread's boundary: nothing else kills engines that hang
                    if index not in failing:
                        logger.exception("an engine was not watched, or stats not published")
                    failing.add(index)

    def _stats(self) -> Stats:
        return sum(self.stats_by_engine, Stats())


def _specs(model: ServedModel) -> list[EngineSpec]:
    settings, document = model.config.engine, dict(model.document)
    archive = identity_of(model.folder, settings.model)
    folder = runtime_folder(model.frontend_pid, model.name, archive, document)
    max_sessions = model.config.frontend.max_sessions
    groups = devices(settings, model.config.handler.tensor_parallel)[:max_sessions]
    return [
        EngineSpec(
            index=index,
            device=device,
            model_name=model.name,
            model_dir=str(model.folder),
            frontend_pid=model.frontend_pid,
            folder=str(folder),
            max_sessions=(max_sessions + index) // len(groups),  # adds up to `max_sessions`
            document=document,
            followers=tuple(followers),
        )
        for index, (device, *followers) in enumerate(groups)
    ]
