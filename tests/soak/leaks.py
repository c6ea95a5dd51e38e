"""What a server holds when nobody uses it, and whether that is more than it was.

Owns what is looked at, and how much more of it there may be. Reads metrics, processes and files; asks the server nothing.
"""

from __future__ import annotations

import contextlib
import math
import os
import time
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import psutil

from tests.e2e.speak import Speaker
from ts_stateful.process.names import FORK_SERVER, name_of
from ts_stateful.serving.server import LocalServer

__all__ = ["MORE", "Held", "Snapshot", "leaks", "temporary_folder", "unsettled"]

MEGABYTE: Final = 1_000_000
_CORES: Final = os.cpu_count() or 1
_QUIET_S = 120.0  # for the last session to expire, and for the last turn that nobody waits for
_POLL_S = 0.5
_REST_S = 4.0  # in which an engine without work gives memory back, and figures are told
_ZERO: Final = ("SessionsOpen", "TurnsInProgress", "RequestsInFlight", "UploadBytes", "HostBytes")
# What is kept for the next session is all that there may be.
_EQUAL: Final = ("DeviceBytes", "SharedBytes")
_DECODER = "ts-decoder"
_TEMPORARIES_OF_A_KILL = 4  # writes under way, one on each thread of the store


@dataclass(frozen=True)
class Held:
    """What the processes of one role hold; `bytes` are those of no file, which a fork has as well until it ends."""

    processes: int = 0
    threads: int = 0
    descriptors: int = 0
    bytes: int = 0


MORE: Final = {
    # Threads of pools start when they are first needed; memory is that of caches and of the allocator.
    "worker": Held(0, 2, 4, 24 * MEGABYTE),
    "engine": Held(0, 12, 16, 48 * MEGABYTE),
    # Its pools grow with the connections, up to a few threads for each core; its memory is Java's business.
    "TorchServe": Held(0, max(24, 4 * _CORES), max(48, 12 * _CORES), 0),
    # The pools of numpy's and scipy's BLAS are there until the first fork ends them, and a new worker's has not forked yet.
    "fork server": Held(0, 2 * _CORES, 4, 8 * MEGABYTE),
    # Started when several images are decoded at the same time, up to `media.workers`; each has a connection, and numpy's BLAS a
    # thread for each core.
    "decoder": Held(3, 3 * _CORES, 3, 80 * MEGABYTE),
    "other": Held(0, 0, 0, 0),
}
"""How much more each role may hold than behind the warm-up."""


@dataclass(frozen=True)
class Snapshot:
    """A quiet server. `sessions` are those that the store has, `files` counts the rest by folder."""

    stats: dict[str, float]
    held: dict[str, Held]
    zombies: tuple[str, ...]
    sessions: tuple[str, ...]
    files: dict[str, int]

    @classmethod
    def take(cls, server: LocalServer, speaker: Speaker, store: Path) -> Snapshot:
        """Looks at the server, which should be quiet."""
        (description,) = server.describe()["workers"]
        worker = psutil.Process(int(description["pid"]))
        java, engines = worker.parent(), server.engines()
        assert java is not None
        family = set(java.children(recursive=True))  # engines may be among them, or not
        for engine in engines:
            family.update(engine.children(recursive=True))
        roles = {"worker": [worker], "engine": engines}
        for role, name in (("fork server", FORK_SERVER), ("decoder", _DECODER)):
            roles[role] = [process for process in family if name_of(process.pid) == name]
        other = family.difference(*roles.values())
        # The front without TorchServe is a child of this process, whose clients come and go.
        of_server = [java] if java.pid != os.getpid() else []
        roles |= {"TorchServe": of_server, "other": list(other)}
        return cls(
            stats=_stats(speaker),
            held={role: _held(processes) for role, processes in roles.items()},
            zombies=tuple(str(process) for process in other if _is_zombie(process)),
            sessions=tuple(sorted(entry.name for entry in _entries(store / "sessions"))),
            files={
                "store, ended sessions": _num_files(store / "ended"),
                "store, unfinished writes": _num_files(store / "~"),
                "runtime and temporary folder": _num_files(temporary_folder(server)),
            },
        )


def temporary_folder(server: LocalServer) -> Path:
    """Where a running server has its sockets, its unpacked model and the logs of its engines."""
    return Path(server.engines()[0].environ()["TMPDIR"])


def unsettled(speaker: Speaker) -> list[str]:
    """Waits until the server is quiet; if it has not become so, what it still has."""
    deadline = time.monotonic() + _QUIET_S
    while found := _unquiet(_stats(speaker)):
        if time.monotonic() > deadline:
            return found
        time.sleep(_POLL_S)
    time.sleep(_REST_S)
    return []


def leaks(
    before: Snapshot, after: Snapshot, *, left: Iterable[str] = (), num_kills: int = 0
) -> list[str]:
    """What there is more of than there may be.

    `left` are sessions that were left to expire: where an engine was killed meanwhile, their logs stay until the store is
    swept, and so does what it was writing.
    """
    found = _unquiet(after.stats)
    found += [f"zombie: {name}" for name in after.zombies]
    swept_later = set(left) if num_kills else set()
    found += [f"a session's log: {name}" for name in after.sessions if name not in swept_later]
    bounds = {
        "store, unfinished writes": _TEMPORARIES_OF_A_KILL * num_kills,
        "runtime and temporary folder": before.files["runtime and temporary folder"] + num_kills,
    }
    found += [
        f"{name}: {after.files[name]} files, at most {bound} are right"
        for name, bound in bounds.items()
        if after.files[name] > bound
    ]
    return found + _grown(before, after)


def _stats(speaker: Speaker) -> dict[str, float]:
    return {name: speaker.figure(f"Stateful{name}") for name in (*_ZERO, *_EQUAL)}


def _unquiet(stats: dict[str, float]) -> list[str]:
    found = [f"{name} is {stats[name]:g}" for name in _ZERO if stats[name]]
    device, shared = (stats[name] for name in _EQUAL)
    if device != shared:
        found.append(f"the device holds {device:,.0f} bytes, of which {shared:,.0f} are shared")
    return found


def _grown(before: Snapshot, after: Snapshot) -> list[str]:
    return [
        f"{role}, {name}: {getattr(before.held[role], name):,} became {getattr(held, name):,}"
        for role, held in after.held.items()
        for name in Held.__dataclass_fields__
        if getattr(held, name) > getattr(before.held[role], name) + _more(role, name)
    ]


def _more(role: str, name: str) -> float:
    more: int = getattr(MORE[role], name)
    return math.inf if role == "TorchServe" and name == "bytes" else more


def _held(processes: Iterable[psutil.Process]) -> Held:
    total = [0, 0, 0, 0]
    for process in processes:
        with contextlib.suppress(psutil.NoSuchProcess, FileNotFoundError), process.oneshot():
            if not _is_zombie(process):
                found = (1, process.num_threads(), process.num_fds(), _memory(process.pid))
                total = [sum(pair) for pair in zip(total, found, strict=True)]
    return Held(*total)


def _memory(pid: int) -> int:
    """In bytes; see proc(5)."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    sizes = dict(line.split(":", 1) for line in lines)
    return sum(1024 * int(sizes[name].split()[0]) for name in ("RssAnon", "RssShmem"))


def _is_zombie(process: psutil.Process) -> bool:
    with contextlib.suppress(psutil.NoSuchProcess):
        return bool(process.status() == psutil.STATUS_ZOMBIE)
    return False


def _entries(folder: Path) -> list[Path]:
    return list(folder.iterdir()) if folder.is_dir() else []


def _num_files(folder: Path) -> int:
    return sum(not path.is_dir() for path in folder.rglob("*"))
