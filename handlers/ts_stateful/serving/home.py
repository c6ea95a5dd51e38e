"""The folders of servers in the system's temporary folder, each locked by its server."""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import tempfile
from pathlib import Path

from ts_stateful.process.private import is_private
from ts_stateful.serving.local import ServerFailed

__all__ = ["make_failed_folder", "make_home", "temporary_folder"]

_LOCK = "server.lock"
_FAILED, _MOST_FAILED = "ts-stateful-failed-", 5
_MAX_BASE = 76  # bytes, before /ts-12345678/tmp/.ts.sock.12345, of the 107 that the kernel takes


def make_home() -> tuple[Path, int]:
    """Create the folder of a server, and remove those that killed servers of this user left.

    Return it with the descriptor of its lock. Whichever process has that open keeps the folder.

    Raises:
        ServerFailed: there is no temporary folder, or its path is too long.
    """
    try:
        base = Path(tempfile.gettempdir())
    except FileNotFoundError as error:
        raise ServerFailed(f"{error.strerror}; set TMPDIR to one that can be written") from None
    if len(os.fsencode(base)) > _MAX_BASE:
        raise ServerFailed(f"TMPDIR is too long for sockets: more than {_MAX_BASE} bytes, {base}")
    for lock in base.glob(f"ts-*/{_LOCK}"):
        if is_private(lock.parent):
            _remove_unlocked(lock)
    home = Path(tempfile.mkdtemp(prefix="ts-"))
    made = home / "lock"
    descriptor = os.open(made, os.O_CREAT | os.O_WRONLY, 0o600)
    fcntl.flock(descriptor, fcntl.LOCK_EX)
    made.rename(home / _LOCK)  # other servers find it only now
    return home, descriptor


def make_failed_folder() -> Path:
    """Create a folder for the logs of a server that does not start; only the last five of this user stay."""
    folders = Path(tempfile.gettempdir()).glob(f"{_FAILED}*")
    with contextlib.suppress(OSError):  # another server removes them, too
        mine = sorted(filter(is_private, folders), key=lambda folder: folder.stat().st_mtime)
        for folder in mine[: 1 - _MOST_FAILED]:
            shutil.rmtree(folder, ignore_errors=True)
    return Path(tempfile.mkdtemp(prefix=_FAILED))


def temporary_folder(folder: Path) -> dict[str, str]:
    """Return the variables that keep all files of a server's processes in its folder, also while its disk is full."""
    return {"TMPDIR": str(folder), "TS_STATEFUL_RUNTIME_DIR": str(folder)}


def _remove_unlocked(lock: Path) -> None:
    with contextlib.suppress(OSError), lock.open() as file:  # or its server runs, or has just ended
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        shutil.rmtree(lock.parent)  # which follows no links
