"""The measured servers of this package and of the baselines, each started when it is first needed."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Final, NamedTuple

from benchmarks.names import (
    ASGI,
    ASGI_STREAMS,
    ASYNC_GRPC,
    ASYNC_HTTP,
    GRPC,
    HTTP,
    IMPLICIT,
    PUBLISHED,
    RECOMPUTE,
    STREAMS,
    TEXT_ASGI,
    TEXT_HTTP,
)
from benchmarks.progress import Progress
from benchmarks.servers import asgi, torchserve
from ts_stateful.serving.server import LocalServer

__all__ = [
    "CHAT_ASYNC_ARCHIVE",
    "RECOMPUTE_ARCHIVE",
    "STEPS_ARCHIVE",
    "TEXT_ARCHIVE",
    "Fleet",
]

CHAT_ARCHIVE: Final = "chat"
CHAT_ASYNC_ARCHIVE: Final = "chat-async"
TEXT_ARCHIVE: Final = "text"
RECOMPUTE_ARCHIVE: Final = "recompute"
STEPS_ARCHIVE: Final = "steps"
PUBLISHED_ARCHIVE: Final = "published"


class _Place(NamedTuple):
    """The server of a system: its archive, and the front."""

    archive: str
    make: Callable[[str, Path], LocalServer] = torchserve


_PLACES: Final[Mapping[str, _Place]] = {
    HTTP: _Place(CHAT_ARCHIVE),
    GRPC: _Place(CHAT_ARCHIVE),
    IMPLICIT: _Place(CHAT_ARCHIVE),
    ASGI: _Place(CHAT_ARCHIVE, asgi),
    ASYNC_HTTP: _Place(CHAT_ASYNC_ARCHIVE),
    ASYNC_GRPC: _Place(CHAT_ASYNC_ARCHIVE),
    TEXT_HTTP: _Place(TEXT_ARCHIVE),
    TEXT_ASGI: _Place(TEXT_ARCHIVE, asgi),
    RECOMPUTE: _Place(RECOMPUTE_ARCHIVE),
    STREAMS: _Place(STEPS_ARCHIVE),
    ASGI_STREAMS: _Place(STEPS_ARCHIVE, asgi),
    PUBLISHED: _Place(PUBLISHED_ARCHIVE),
}


class Fleet:
    """A context manager: leaving it stops the servers. `pack` writes an archive into `folder`, in any thread."""

    def __init__(self, folder: Path, pack: Callable[[str], None], progress: Progress) -> None:
        self._folder = folder
        self._pack = pack
        self._progress = progress
        self._packed: set[str] = set()
        self._servers: dict[_Place, LocalServer] = {}

    def start(self, systems: Iterable[str]) -> None:
        """Start the servers of those systems that do not run yet, side by side."""
        places = {_PLACES[system] for system in systems if system in _PLACES} - set(self._servers)
        archives = {place.archive for place in places} - self._packed
        if not places:
            return
        self._progress.say(f"      starting servers: {', '.join(sorted(map(_title, places)))}")
        with ThreadPoolExecutor() as pool:
            list(pool.map(self._pack, archives))
            self._packed |= archives
            list(pool.map(self._start, places))

    def of(self, system: str) -> LocalServer:
        """Return the running server of a system."""
        self.start([system])
        return self._servers[_PLACES[system]]

    def _start(self, place: _Place) -> None:
        server = place.make(place.archive, self._folder)
        server.start()
        self._servers[place] = server

    def __enter__(self) -> Fleet:
        return self

    def __exit__(self, *_: object) -> None:
        with ThreadPoolExecutor() as pool:
            list(pool.map(lambda server: server.stop(), self._servers.values()))


def _title(place: _Place) -> str:
    return place.archive + (" without TorchServe" if place.make is asgi else "")
