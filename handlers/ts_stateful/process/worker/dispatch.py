"""Which engine gets which request.

Owns the links to all engines of one worker and the map from session to engine. Knows nothing of the frontend: it is given a
callback for events.
"""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import torch
from lru import LRU
from msgspec import structs

from ts_stateful.config.schema import Config, ConfigError, EngineConfig
from ts_stateful.process.archive import identity_of
from ts_stateful.process.spec import EngineSpec, runtime_folder
from ts_stateful.process.worker.fork_server import ForkServer
from ts_stateful.process.worker.group import join
from ts_stateful.process.worker.link import EngineLink
from ts_stateful.process.worker.supervisor import Timeouts
from ts_stateful.protocol.answers import encode
from ts_stateful.protocol.errors import SessionExists
from ts_stateful.protocol.events import Event, EventKind, Submit
from ts_stateful.protocol.requests import Fork, Step
from ts_stateful.protocol.stats import Stats

__all__ = ["Dispatcher", "devices"]

logger = logging.getLogger(__name__)

_WATCH_S = 1.0
_REMEMBERED = 200_000  # sessions whose engine is known; ended ones stay, since their engine knows how they ended


class Dispatcher:
    """All engines of one worker.

    `on_event` is called from other threads, once with a `LAST` event for every request that was submitted and not dropped.
    `on_stats` gets the figures of all engines together, every second or so. `frontend_pid` is TorchServe's process, which a
    worker has as its parent. A `fork_server` may be shared; without one the dispatcher has its own.

    Raises:
        ConfigError: another registration of the same `handler.engineGroup` is set up differently.
    """

    def __init__(
        self,
        config: Config,
        document: Mapping[str, Any],
        *,
        model_name: str,
        model_dir: Path,
        on_event: Callable[[Event], None],
        on_stats: Callable[[Stats], None] = lambda stats: None,
        frontend_pid: int | None = None,
        fork_server: ForkServer | None = None,
    ) -> None:
        self._max_sessions = config.frontend.max_sessions
        self._on_event, self._on_figures = on_event, on_stats
        self._by_session: LRU[str, EngineLink] = LRU(_REMEMBERED)
        self._stop = threading.Event()
        self._fork_server = ForkServer()
        frontend_pid = frontend_pid or os.getppid()
        self._membership = joined = join(config, model_dir, frontend_pid)
        identity: tuple[object, ...] = (
            joined.identity
            if joined
            else (model_name, identity_of(model_dir, config.engine.model), dict(document))
        )
        folder = runtime_folder(frontend_pid, *identity)
        names = devices(config.engine)[: self._max_sessions]
        specs = [
            EngineSpec(
                index=index,
                device=device,
                model_name=config.engine.engine_group or model_name,
                model_dir=str(model_dir),
                frontend_pid=frontend_pid,
                folder=str(folder),
                max_sessions=(self._max_sessions + index) // len(names),  # adds up to all
                document=dict(document),
                shared=joined is not None,
            )
            for index, device in enumerate(names)
        ]
        timeouts, forks = Timeouts.of(config.engine), fork_server or self._fork_server
        self._links = [self._link(spec, timeouts, forks) for spec in specs]

    def _link(self, spec: EngineSpec, timeouts: Timeouts, fork_server: ForkServer) -> EngineLink:
        return EngineLink(
            spec,
            timeouts,
            fork_server,
            on_event=self._on_event,
            on_attached=partial(self._attached, spec.index),
            on_free=self._forget,
        )

    def start(self) -> None:
        """Starts the engines and returns when all of them answer, or when those do that an earlier worker has left: their
        sessions must not wait for an engine that has to load.

        Raises:
            EngineDied: no engine was there, and one cannot be started.
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
        """Hands in a request; never blocks.

        Raises:
            SessionExists: the id of a fork belongs to another engine than its source.
        """
        command = message.command
        known = None if command.session_id is None else self._by_session.get(command.session_id)
        # Whether or not a session is open, the engine that has had one of this id can tell, so it is asked first.
        up = [link for link in self._links if link.takes_sessions] or self._links
        best = sorted(up, key=lambda link: (link is not known, link.load))
        if isinstance(command, Fork):
            self._fork(message, command.new_session_id, known or best[0])
        elif known is not None and not message.creates_session:
            known.submit(message)
        elif isinstance(command, Step) and not message.creates_session:
            # The first message of a sequence begins it. One of a sequence that was here does not: it was lost, or has ended.
            self._try(structs.replace(message, creates_session=True), best)
        else:
            self._try(message, best)

    def describe(self, request_id: str) -> None:
        """Answers with the figures of all engines together and of each, when all have told theirs."""
        missing = iter(range(len(self._links) - 1, -1, -1))

        def told() -> None:
            if next(missing) == 0:
                self._describe(request_id)

        for link in self._links:
            link.refresh(told)

    def _describe(self, request_id: str) -> None:
        document = {
            "sessions_max": self._max_sessions,
            **structs.asdict(self._stats()),
            "engines": [link.description for link in self._links],
        }
        self._on_event(Event(request_id, EventKind.LAST, encode(document)))

    def drop(self, request_id: str) -> None:
        """The client of a request is gone; no more events for it."""
        any(link.drop(request_id) for link in self._links)

    def close(self) -> None:
        """Lets go of the engines, which wait for the next worker."""
        self._stop.set()
        for link in self._links:
            link.close()
        self._fork_server.close()
        if self._membership is not None:
            self._membership.leave()

    def _fork(self, message: Submit, new_session_id: str | None, link: EngineLink) -> None:
        # A fork has to be where its source is, and only the other engine knows whether its session is still open.
        if new_session_id and self._by_session.setdefault(new_session_id, link) is not link:
            raise SessionExists(
                "the id is, or was, that of a session on another engine; choose another one",
                field="new_session_id",
            )
        if message.command.session_id is not None:
            self._by_session[message.command.session_id] = link
        link.submit(message)

    def _try(self, message: Submit, links: Sequence[EngineLink]) -> None:
        """Hands a request to the first of these engines; where it would open a session and that one is full, to the next."""
        link, *others = links
        if message.command.session_id is not None:
            self._by_session[message.command.session_id] = link  # which opens it, or takes it over
        link.submit(
            message,
            partial(self._try, message, others) if message.creates_session and others else None,
        )

    def _attached(self, index: int, session_ids: tuple[str, ...]) -> None:
        for session_id in session_ids:
            self._by_session[session_id] = self._links[index]

    def _forget(self, session_id: str) -> None:
        self._by_session.pop(session_id, None)

    def _watch(self) -> None:
        while not self._stop.wait(_WATCH_S):
            for link in self._links:
                link.watch()
            self._on_figures(self._stats())

    def _stats(self) -> Stats:
        in_flight = sum(link.num_in_flight for link in self._links)
        told = sum((link.stats for link in self._links), Stats())
        return structs.replace(told, requests_in_flight=in_flight)


def devices(settings: EngineConfig) -> list[str]:
    """The device of every engine: one engine a GPU, or one on the CPU, unless the configuration says otherwise.

    Raises:
        ConfigError: several are to share a GPU, and each would take what is free there for its own.
    """
    num_gpus = torch.cuda.device_count() if settings.device in ("auto", "cuda") else 0
    names = [f"cuda:{index}" for index in range(num_gpus)]
    names = names or [settings.device if settings.device != "auto" else "cpu"]
    count = settings.engines if isinstance(settings.engines, int) else len(names)
    is_gpu = names[0].startswith("cuda")
    if is_gpu and len(names) < count and settings.device_cache_bytes is None:
        raise ConfigError(
            f"model-config.yaml: handler.engines: {count} engines share {', '.join(names)}: set"
            " handler.deviceCacheBytes to what each may take, or write `engines: auto`"
        )
    return [names[index % len(names)] for index in range(count)]
