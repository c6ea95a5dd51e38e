"""The folders of servers in the system's temporary folder, each locked by its server."""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import tempfile
from pathlib import Path

from ts_stateful.process.private import is_private

__all__ = ["make_home"]

_LOCK = "server.lock"


def make_home() -> tuple[Path, int]:
    """Create the folder of a server, and remove those that killed servers of this user left.

    Return it with the descriptor of its lock. Whichever process has that open keeps the folder.
    """
    for lock in Path(tempfile.gettempdir()).glob(f"ts-*/{_LOCK}"):
        if is_private(lock.parent):
            _remove_unlocked(lock)
    # Short, because it has the engines' Unix sockets, whose paths are limited to about 100 characters.
    home = Path(tempfile.mkdtemp(prefix="ts-"))
    made = home / "lock"
    descriptor = os.open(made, os.O_CREAT | os.O_WRONLY, 0o600)
    fcntl.flock(descriptor, fcntl.LOCK_EX)
    made.rename(home / _LOCK)  # other servers find it only now
    return home, descriptor


def _remove_unlocked(lock: Path) -> None:
    with contextlib.suppress(OSError), lock.open() as file:  # or its server runs, or has just ended
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        shutil.rmtree(lock.parent)  # which follows no links
