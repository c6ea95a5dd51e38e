"""Which engine gets which request.

Owns the links to all engines of one worker and the map from session to engine. Knows nothing of the frontend: it is given a
callback for events.
"""

from __future__ import annotations

import logging
import math
import os
import threading
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import torch
from lru import LRU

from ts_stateful.config import Config, HandlerConfig
from ts_stateful.errors import SessionExists
from ts_stateful.events import EngineCommand, Event, Submit
from ts_stateful.figures import Figures
from ts_stateful.process.link import EngineLink, Timeouts
from ts_stateful.process.spec import EngineSpec, runtime_folder
from ts_stateful.process.supervisor import Supervisor
from ts_stateful.protocol import Fork

__all__ = ["Dispatcher", "devices"]

logger = logging.getLogger(__name__)

_WATCH_S = 1.0
_REMEMBERED = 200_000  # sessions whose engine is known; ended ones stay, since their engine knows how they ended


class Dispatcher:
    """All engines of one worker.

    `on_event` is called from other threads, once with a `LAST` event for every request that was submitted and not dropped.
    `on_figures` gets the figures of all engines together, every second or so. `frontend_pid` is TorchServe's process, which a
    worker has as its parent.
    """

    def __init__(
        self,
        config: Config,
        document: Mapping[str, Any],
        *,
        model_name: str,
        model_dir: Path,
        on_event: Callable[[Event], None],
        on_figures: Callable[[Figures], None] = lambda figures: None,
        frontend_pid: int | None = None,
    ) -> None:
        self._links: list[EngineLink] = []
        self._by_session: LRU[str, EngineLink] = LRU(_REMEMBERED)
        self._stop = threading.Event()
        self._on_figures = on_figures
        names = devices(config.handler)
        frontend_pid = frontend_pid or os.getppid()
        folder = runtime_folder(frontend_pid, model_name, str(model_dir), dict(document))
        timeouts = Timeouts(config.handler.restart_deadline_sec, config.handler.heartbeat_sec)
        for index, device in enumerate(names):
            spec = EngineSpec(
                index=index,
                device=device,
                model_name=model_name,
                model_dir=str(model_dir),
                frontend_pid=frontend_pid,
                folder=str(folder),
                max_sessions=math.ceil(config.frontend.max_sessions / len(names)),
                document=dict(document),
            )
            link = EngineLink(
                Supervisor(spec, config.handler.load_timeout_sec),
                timeouts,
                pid=os.getpid(),
                on_event=on_event,
                on_attached=lambda ids, index=index: self._attached(index, ids),  # type: ignore[misc]
            )
            self._links.append(link)

    def start(self) -> None:
        """Starts or finds every engine; raises `EngineDied` if one cannot be had."""
        with ThreadPoolExecutor(len(self._links)) as pool:
            list(pool.map(EngineLink.connect, self._links))
        threading.Thread(target=self._watch, name="engine-watch", daemon=True).start()

    def submit(
        self,
        request_id: str,
        command: EngineCommand,
        attachments: tuple[bytes, ...] = (),
        *,
        opens: bool = False,
        pull: bool = False,
    ) -> None:
        """Hands in a request; never blocks.

        Raises:
            SessionExists: the id of a fork belongs to another engine than its source.
        """
        link = self._link_for(command, opens=opens)
        link.submit(Submit(request_id, command, attachments, opens=opens, pull=pull))

    def drop(self, request_id: str) -> None:
        """The client of a request is gone; no more events for it."""
        any(link.drop(request_id) for link in self._links)

    def close(self) -> None:
        """Lets go of the engines, which wait for the next worker."""
        self._stop.set()
        for link in self._links:
            link.close()

    def _link_for(self, command: EngineCommand, *, opens: bool) -> EngineLink:
        known = None if command.session_id is None else self._by_session.get(command.session_id)
        link = known or min(self._links, key=lambda link: link.num_sessions)
        opened = command.new_session_id if isinstance(command, Fork) else command.session_id
        if not opens or opened is None or self._by_session.setdefault(opened, link) is link:
            return link
        # A fork has to be where its source is, and only that other engine knows whether its session is still open.
        raise SessionExists(
            "the id is, or was, that of a session on another engine; choose another one",
            field="new_session_id",
        )

    def _attached(self, index: int, session_ids: tuple[str, ...]) -> None:
        for session_id in session_ids:
            self._by_session[session_id] = self._links[index]

    def _watch(self) -> None:
        while not self._stop.wait(_WATCH_S):
            for link in self._links:
                link.watch()
            self._on_figures(sum((link.figures for link in self._links), Figures()))


def devices(settings: HandlerConfig) -> list[str]:
    """The device of every engine: one engine a GPU, or one on the CPU, unless the configuration says otherwise."""
    num_gpus = torch.cuda.device_count() if settings.device in ("auto", "cuda") else 0
    count = settings.engines if isinstance(settings.engines, int) else max(1, num_gpus)
    if num_gpus:
        return [f"cuda:{index % num_gpus}" for index in range(count)]
    return [settings.device if settings.device != "auto" else "cpu"] * count
