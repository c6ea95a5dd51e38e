"""The engine process: an engine, its loop and its Unix socket.

SIGTERM ends it, and another one takes its place. SIGUSR1 ends it because its server is about to stop.
"""

from __future__ import annotations

import contextlib
import logging
import os
import shutil
import signal
import socket
import sys
import threading
import time
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any

import psutil

from ts_stateful.config.schema import Config, ConfigError, load_config
from ts_stateful.engine.administration import administer
from ts_stateful.engine.engine import SessionEngine
from ts_stateful.engine.services import Placement, Ranks, Services, WorkQueue
from ts_stateful.memory import give_memory_back, without_collections
from ts_stateful.process.channel import Channel
from ts_stateful.process.engine.lifespan import Lifespan, exit_soon, exit_with
from ts_stateful.process.engine.ranks import DriverSocket, FollowerProcesses, fork_followers
from ts_stateful.process.engine.threads import set_threads
from ts_stateful.process.load_progress import LoadProgress
from ts_stateful.process.logs import configure_logs
from ts_stateful.process.messages import (
    AdminAnswer,
    AdminRequest,
    Draining,
    Drop,
    EngineHello,
    Ping,
    Pong,
    WorkerHello,
)
from ts_stateful.process.names import ENGINE, FOLLOWER, take_name
from ts_stateful.process.sockets import accept, listen
from ts_stateful.process.spec import STATE_FOLDER, EngineSpec
from ts_stateful.protocol.events import Event, Submit
from ts_stateful.store.access import store_of
from ts_stateful.store.ordered_calls import StoreCalls

__all__ = ["EngineProcess", "main"]

logger = logging.getLogger("ts_stateful.engine")

# Imported when the kind of model is known: transformers take two thirds of the time in which an engine starts.
_LANGUAGE = "ts_stateful.language.engine"
_RECURRENT = "ts_stateful.recurrent.engine"
_WATCH_S = 1.0  # how long it may take to see that it is time to end
_IDLE_S = 1.0  # without a step, after which memory is returned to the system
_FLUSH_S = 1.0  # for the last answers to leave
_RETRY_S = 0.1
_SAME_ERROR_S = 10.0
_QUIET_S = 1.0  # without a request or an answer, after which none is under way


class EngineProcess:
    """Runs an engine and connects it to its workers."""

    def __init__(
        self, spec: EngineSpec, config: Config, followers: FollowerProcesses | None = None
    ) -> None:
        self._spec = spec
        self._followers = followers
        self._queue = WorkQueue()
        self._owners: dict[str, Channel] = {}
        self._channels: set[Channel] = set()
        self._ready: dict[Channel, list[Event]] = {}  # events that are not sent yet
        self._worked_at: float | None = None  # since memory was returned to the system
        self._draining = Draining(successor=True)
        self._spoke_at = 0.0  # with a worker
        self.lifespan = Lifespan(config.engine, psutil.Process(spec.frontend_pid), spec.model_dir)
        self.store = config.store
        self._engine = self._load(config)
        num_parameters = self._engine.kind.num_parameters
        set_threads(config.engine.threads, num_parameters, 1 + len(spec.followers))
        self._engine.kind.tune()
        self.lifespan.detached()  # from here on: no worker could come while the model was loaded

    def _load(self, config: Config) -> SessionEngine[Any]:
        kind = _import_kind(config)
        spec, settings = self._spec, config.store
        progress = LoadProgress(spec.path("loading"))
        progress.begin("opening the store" if settings is not None else "reading the configuration")
        default = Path(os.environ.get(STATE_FOLDER) or Path(spec.folder).parent) / "store"
        access = store_of(settings, default) if settings is not None else None
        store = StoreCalls(access, self._queue) if access is not None else None
        services = Services(
            self, self._queue, store=store, followers=self._followers, progress=progress
        )
        placement = _placement(spec, rank=0)
        engine: SessionEngine[Any] = kind.load_engine(config, placement, services)
        return engine

    def serve(self) -> None:
        """Listen, and run the engine until it is time to end."""
        listener = listen(self._spec.path("sock"))
        threading.Thread(target=self._accept, args=(listener,), daemon=True).start()
        devices = ", ".join([self._spec.device, *self._spec.followers])
        logger.info("engine %d serves on %s", self._spec.index, devices)
        while not self.lifespan.is_over(self._is_busy):
            self._queue.run(self._patience())
            self._engine.tick()
            self._deliver()
            if self._engine.busy:
                self._engine.step()
                self._deliver()
                self._worked_at = time.monotonic()
            elif self._worked_at is not None and time.monotonic() - self._worked_at > _IDLE_S:
                give_memory_back()
                self._worked_at = None
        for channel in self._channels:
            channel.flush(_FLUSH_S)

    def leave(self, *, successor: bool) -> None:
        """Let the engine finish what it has, and end; for signal handlers, and idempotent."""
        self._queue.put(partial(self._leave, Draining(successor)))

    def _leave(self, leaving: Draining) -> None:
        if self._draining.successor:  # there is no way back from having none
            self._draining = leaving
        self.lifespan.drain("asked to" if leaving.successor else "the server is about to stop")
        for channel in self._channels:
            channel.send(self._draining)

    def _is_busy(self) -> bool:
        if any(session.busy for session in self._engine.table):
            return True
        # The server is stopped next: clients that pull have yet to ask for a turn's end, and what is pushed has yet to pass.
        is_last = self._channels and not self._draining.successor
        return bool(is_last) and time.monotonic() - self._spoke_at < _QUIET_S

    def _patience(self) -> float:
        if self._engine.busy:
            return 0.0
        return min(_WATCH_S, max(0.0, self._engine.next_deadline() - time.monotonic()))

    def _accept(self, listener: socket.socket) -> None:
        while True:
            try:
                connection = accept(listener)
                if connection is not None:
                    self._open_channel(connection)
            except OSError as error:  # of files or threads there may be too many for now
                logger.error("a connection could not be taken: %s", error)
                time.sleep(_RETRY_S)

    def _open_channel(self, connection: socket.socket) -> None:
        Channel(connection, self, at_engine=True).start()

    def on_message(self, channel: Channel, message: Any) -> None:
        """See `ChannelOwner`."""
        self._queue.put(partial(self._take, channel, message))

    def on_close(self, channel: Channel) -> None:
        """See `ChannelOwner`."""
        self._queue.put(partial(self._closed, channel))

    def _take(self, channel: Channel, message: Any) -> None:
        if isinstance(message, Submit):
            self._spoke_at = time.monotonic()
            self._owners[message.request_id] = channel
            self._engine.submit(message)
        elif isinstance(message, Drop):
            self._owners.pop(message.request_id, None)
            self._engine.drop(message.request_id)
        elif isinstance(message, Ping):
            channel.send(Pong(self._engine.stats()))
        elif isinstance(message, AdminRequest):
            outcome = administer(self._engine, message.operation)
            channel.send(AdminAnswer(message.request_id, outcome))
        elif isinstance(message, WorkerHello):
            self._channels.add(channel)
            self.lifespan.attached(message.archive)
            self._engine.set_away(False)
            ids = tuple(session.session_id for session in self._engine.table)
            channel.send(EngineHello(os.getpid(), ids, self._engine.stats()))
            if self.lifespan.is_draining:
                channel.send(self._draining)

    def _closed(self, channel: Channel) -> None:
        self._channels.discard(channel)
        if not self._channels:
            self.lifespan.detached()
        self._engine.set_away(not self._channels)
        for request_id in [rid for rid, owner in self._owners.items() if owner is channel]:
            self._take(channel, Drop(request_id))

    def emit(self, event: Event) -> None:
        """See `EventSink`."""
        owners, name = self._owners, event.request_id
        owner = owners.pop(name, None) if event.ends else owners.get(name)
        if owner is not None:
            self._ready.setdefault(owner, []).append(event)
            self._spoke_at = time.monotonic()

    def _deliver(self) -> None:
        """Send the events since the last call."""
        for channel, events in self._ready.items():
            channel.send_together(events)
        self._ready.clear()


def _import_kind(config: Config) -> Any:
    """Return the module of the model's kind, after it is imported."""
    with without_collections():
        return import_module(_LANGUAGE if config.state is None else _RECURRENT)


def _placement(spec: EngineSpec, rank: int) -> Placement:
    devices = [spec.device, *spec.followers]
    ranks = Ranks(rank, len(devices), str(spec.path("ranks"))) if spec.followers else None
    return Placement(spec.model_dir, spec.model_name, devices[rank], spec.max_sessions, ranks)


def preload(spec_path: Path) -> None:
    """Import what the engine of a spec needs. The engine itself reports what is wrong with a spec or a package."""
    with contextlib.suppress(Exception):
        config = load_config(EngineSpec.load(spec_path).document)
        _import_kind(config)


def _load(spec: EngineSpec, followers: FollowerProcesses | None) -> EngineProcess | None:
    """Load the model. If it cannot be, leave the reason for the worker, and return None."""
    reason, loaded = spec.path("reason"), threading.Event()
    try:
        exit_with(psutil.Process(spec.frontend_pid), until=loaded)
        return EngineProcess(spec, load_config(spec.document), followers)
    except ConfigError as error:  # the text has the cure, and a trace would bury it
        logger.error("%s", error)
        reason.write_text(str(error), encoding="utf-8")
        return None
    except Exception as error:  # the process's boundary
        reason.write_text(f"{type(error).__name__}: {error}", encoding="utf-8")
        raise
    finally:
        loaded.set()
        spec.path("loading").unlink(missing_ok=True)


def follow(spec: EngineSpec, driver: DriverSocket) -> int:
    """Run a follower of the engine, which holds the lock as well; return the exit status."""
    take_name(f"{FOLLOWER}-{spec.index}-{driver.rank}")
    for number in (signal.SIGTERM, signal.SIGUSR1, signal.SIGINT):
        signal.signal(number, signal.SIG_IGN)  # its driver decides
    logging.getLogger().setLevel(logging.ERROR)  # the driver reports the rest
    config = load_config(spec.document)
    kind = _import_kind(config)
    try:
        follower = kind.load_follower(config, _placement(spec, driver.rank), driver)
    except Exception:  # the process's boundary
        driver.wait_for_end(_SAME_ERROR_S)  # it meets the same error, and reports it
        raise
    set_threads(config.engine.threads, follower.num_parameters, 1 + len(spec.followers))
    follower.run()
    return 0


def main(lock_fd: int, spec_path: Path) -> int:
    """Run the engine of a spec, whose lock this process holds; return the exit status."""
    os.set_inheritable(lock_fd, False)  # held for as long as this process lives, and not longer
    spec = EngineSpec.load(spec_path)
    take_name(f"{ENGINE}-{spec.index}")
    configure_logs(f"engine-{spec.index}")
    with contextlib.suppress(OSError):  # the kernel's OOM killer takes the engine before the worker
        Path("/proc/self/oom_score_adj").write_text("500")
    followers = None
    if spec.followers:
        spec.path("ranks").unlink(missing_ok=True)  # of an engine that was killed
        ranks = fork_followers(len(spec.followers))
        if isinstance(ranks, DriverSocket):
            return follow(spec, ranks)
        followers = ranks
        followers.watch()
    process = _load(spec, followers)
    if process is None:
        return 1
    for number, last in ((signal.SIGTERM, False), (signal.SIGUSR1, True)):
        signal.signal(number, lambda *_, last=last: process.leave(successor=not last))
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for TorchServe; the engine follows it
    process.serve()
    spec.path("sock").unlink(missing_ok=True)
    if process.lifespan.frontend_exited:
        shutil.rmtree(spec.folder, ignore_errors=True)
    exit_soon(process.store)
    return 0


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]), Path(sys.argv[2])))
