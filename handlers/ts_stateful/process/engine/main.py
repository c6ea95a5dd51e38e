"""The engine process: an engine behind a Unix socket.

Owns the process: its socket, its loop and its threads. Forked by `fork_server` with the path of a spec; `lifespan` says when it
ends. SIGTERM ends it, and another one takes its place; SIGUSR1 says that TorchServe is about to stop, so that none has to.
"""

from __future__ import annotations

import contextlib
import ctypes
import logging
import os
import queue
import shutil
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from ts_stateful.config.schema import Config, load_config
from ts_stateful.process.channel import Channel
from ts_stateful.process.engine.lifespan import Lifespan
from ts_stateful.process.engine.placement_sync import PlacementSync
from ts_stateful.process.messages import (
    Draining,
    Drop,
    EngineHello,
    Ping,
    Pong,
    SessionPlacedAck,
    SessionReleased,
    WorkerHello,
)
from ts_stateful.process.names import ENGINE, take_name
from ts_stateful.process.spec import EngineSpec, forget_groups
from ts_stateful.protocol.events import Event, Submit
from ts_stateful.store.access import store_of
from ts_stateful.store.threads import started_pool

if TYPE_CHECKING:
    from ts_stateful.language.engine import Engine
    from ts_stateful.recurrent.engine import StateEngine

__all__ = ["EngineProcess", "main"]

logger = logging.getLogger("ts_stateful.engine")

# Imported when it is known what is needed: transformers take two thirds of the time in which an engine starts.
_LANGUAGE_MODULES = (
    "ts_stateful.language.engine",
    "ts_stateful.language.network.load",
    "ts_stateful.media.load",
)
_STATE_MODULES = ("ts_stateful.recurrent.engine",)
_SMALL_MODEL = 10_000_000  # parameters
_WATCH_S = 1.0  # how long it may take to see that it is time to end
_IDLE_S = 1.0  # without a step, after which memory is given back
_FLUSH_S = 1.0  # for the last answers to leave
_RETRY_S = 0.1
_QUIET_S = 1.0  # without a request or an answer, after which none is under way any more


class EngineProcess:
    """Runs an engine and speaks for it."""

    def __init__(self, spec: EngineSpec, config: Config) -> None:
        self._spec = spec
        self._inbox: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        self._owners: dict[str, Channel] = {}
        self._channels: set[Channel] = set()
        self._placement_sync = PlacementSync(self._deliver)
        self._worked_at: float | None = None  # since memory was given back
        self._draining = Draining(successor=True)
        self._spoke_at = 0.0  # with a worker
        self.lifespan = Lifespan(config.engine, spec.frontend_pid, archive=spec.archive)
        self._engine = self._load(config)
        _set_threads(config.engine.threads, self._engine.num_parameters)
        self.lifespan.alone()  # from here on: no worker could come while the model was loaded

    def _load(self, config: Config) -> Engine | StateEngine:
        return self._load_language(config) if config.state is None else self._load_states(config)

    def _load_language(self, config: Config) -> Engine:
        from ts_stateful.language.engine import Engine  # noqa: PLC0415
        from ts_stateful.language.network.load import load_model  # noqa: PLC0415
        from ts_stateful.media.fetch import Fetcher  # noqa: PLC0415
        from ts_stateful.media.load import MediaLoader  # noqa: PLC0415

        media = config.handler.media
        return Engine(
            load_model(config.handler, Path(self._spec.model_dir), torch.device(self._spec.device)),
            config,
            emit=self._placement_sync.emit,
            load_images=MediaLoader(media, Fetcher(media)).load,
            executor=started_pool(media.workers, "media"),
            results=self._inbox,
            max_sessions=self._spec.max_sessions,
            store=store_of(config.handler.store, self._store_folder),
        )

    def _load_states(self, config: Config) -> StateEngine:
        from ts_stateful.recurrent.engine import load_engine  # noqa: PLC0415

        assert config.state is not None
        settings = config.state
        return load_engine(
            config,
            Path(self._spec.model_dir),
            torch.device(self._spec.device),
            name=self._spec.model_name,
            emit=self._placement_sync.emit,
            max_sessions=self._spec.max_sessions,
            store=store_of(settings.store, self._store_folder) if settings.commit_every else None,
            results=self._inbox,
        )

    @property
    def _store_folder(self) -> Path:
        """Where the default store is."""
        return Path(self._spec.folder).parent / "store"

    def serve(self) -> None:
        """Listens, and runs the engine until it is time to end."""
        path = self._spec.path("sock")
        path.unlink(missing_ok=True)
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        listener.bind(str(path))
        path.chmod(0o600)
        listener.listen()
        threading.Thread(target=self._accept, args=(listener,), daemon=True).start()
        logger.info("engine %d serves on %s", self._spec.index, self._spec.device)
        while not self.lifespan.is_over(self._is_busy):
            self._drain()
            self._placement_sync.release()
            self._engine.tick()
            if self._engine.busy:
                self._engine.step()
                self._worked_at = time.monotonic()
            elif self._worked_at is not None and time.monotonic() - self._worked_at > _IDLE_S:
                _give_memory_back()
                self._worked_at = None
        for channel in self._channels:
            channel.flush(_FLUSH_S)

    def leave(self, *, successor: bool) -> None:
        """Has the engine finish what it has, and end; may be called by a signal handler, and again."""
        self._inbox.put(partial(self._leave, Draining(successor)))

    def _leave(self, leaving: Draining) -> None:
        if self._draining.successor:  # there is no way back from having none
            self._draining = leaving
        self.lifespan.leave("asked to" if leaving.successor else "TorchServe is about to stop")
        for channel in self._channels:
            channel.send(self._draining)

    def _is_busy(self) -> bool:
        if any(session.busy for session in self._engine.table):
            return True
        # TorchServe is stopped next: who pulls has yet to ask for a turn's end, and what is pushed has yet to pass through.
        is_last = self._channels and not self._draining.successor
        return bool(is_last) and time.monotonic() - self._spoke_at < _QUIET_S

    def _drain(self) -> None:
        """Does what has come in; waits for it only if the engine has nothing to do."""
        with contextlib.suppress(queue.Empty):
            self._inbox.get(timeout=self._patience())()
            while True:
                self._inbox.get_nowait()()

    def _patience(self) -> float:
        if self._engine.busy:
            return 0.0
        return min(_WATCH_S, max(0.0, self._engine.next_deadline() - time.monotonic()))

    def _accept(self, listener: socket.socket) -> None:
        while True:
            try:
                connection, _ = listener.accept()
            except OSError as error:  # of files there may be too many for now
                logger.error("a connection could not be taken: %s", error)
                time.sleep(_RETRY_S)
            else:
                self._open_channel(connection)

    def _open_channel(self, connection: socket.socket) -> None:
        channel = Channel(
            connection,
            at_engine=True,
            on_message=lambda message: self._inbox.put(partial(self._take, channel, message)),
            on_close=lambda: self._inbox.put(partial(self._closed, channel)),
        )
        channel.start()

    def _take(self, channel: Channel, message: Any) -> None:
        if isinstance(message, Submit):
            self._spoke_at = time.monotonic()
            self._owners[message.request_id] = channel
            self._tell_others(channel, message)
            self._engine.submit(message)
        elif isinstance(message, Drop):
            self._owners.pop(message.request_id, None)
            self._engine.drop(message.request_id)
        elif isinstance(message, SessionReleased):
            for other in self._channels - {channel}:
                other.send(message)
        elif isinstance(message, SessionPlacedAck):
            self._placement_sync.heard(message.request_id, channel)
        elif isinstance(message, Ping):
            channel.send(Pong(self._engine.stats()))
        elif isinstance(message, WorkerHello):
            self._channels.add(channel)
            self.lifespan.attached(message.archive)
            self._engine.set_away(False)
            ids = tuple(session.session_id for session in self._engine.table)
            channel.send(EngineHello(os.getpid(), ids))
            if self.lifespan.is_draining:
                channel.send(self._draining)

    def _tell_others(self, channel: Channel, message: Submit) -> None:
        """Those that share this engine learn where a session is, so that none of them asks another engine for it."""
        others = self._channels - {channel}
        if others:
            new = tuple(name for name in message.session_ids if name not in self._engine.table)
            if new:
                self._placement_sync.announce(message.request_id, new, others)

    def _closed(self, channel: Channel) -> None:
        self._channels.discard(channel)
        self._placement_sync.left(channel)
        if not self._channels:
            self.lifespan.alone()
        self._engine.set_away(not self._channels)
        for request_id in [rid for rid, owner in self._owners.items() if owner is channel]:
            del self._owners[request_id]
            self._engine.drop(request_id)

    def _deliver(self, event: Event) -> None:
        owners, name = self._owners, event.request_id
        owner = owners.pop(name, None) if event.ends else owners.get(name)
        if owner is not None:
            owner.send(event)
            self._spoke_at = time.monotonic()


def _set_threads(count: int, num_parameters: int) -> None:
    """The threads of a forward pass: for a small model, handing work to a second one costs more than it saves."""
    if count or num_parameters < _SMALL_MODEL:
        torch.set_num_threads(count or 1)


def _give_memory_back() -> None:
    """Returns to the system what finished passes have left in the allocator between the embeddings that stay."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)  # of glibc
    if trim is not None:
        trim(0)


def preload(spec_path: Path) -> None:
    """Imports what the engine of a spec needs. What is wrong with the spec or a package, that engine will tell."""
    with contextlib.suppress(Exception):
        config = load_config(EngineSpec.load(spec_path).document)
        for name in _LANGUAGE_MODULES if config.state is None else _STATE_MODULES:
            import_module(name)


def main(lock_fd: int, spec_path: Path) -> int:
    """Runs the engine of a spec, with the lock that says so; returns the exit status."""
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s %(message)s")
    os.set_inheritable(lock_fd, False)  # held for as long as this process lives, and not longer
    spec = EngineSpec.load(spec_path)
    take_name(f"{ENGINE}-{spec.index}")
    with contextlib.suppress(OSError):  # the kernel's OOM killer takes the engine before the worker
        Path("/proc/self/oom_score_adj").write_text("500")
    process = EngineProcess(spec, load_config(spec.document))
    for number, last in ((signal.SIGTERM, False), (signal.SIGUSR1, True)):
        signal.signal(number, lambda *_, last=last: process.leave(successor=not last))
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for TorchServe; the engine follows it
    process.serve()
    spec.path("sock").unlink(missing_ok=True)
    if process.lifespan.frontend_gone:
        shutil.rmtree(spec.folder, ignore_errors=True)
        forget_groups(Path(spec.folder), spec.frontend_pid)
    return 0


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]), Path(sys.argv[2])))
