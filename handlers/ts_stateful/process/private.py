"""Folders that no other user of the machine can enter."""

from __future__ import annotations

import os
import stat
import tempfile
from pathlib import Path

__all__ = ["is_private", "make_private", "user_folder"]


def make_private(folder: Path) -> Path:
    """Create a folder with mode 0700 unless this user has it already; return it.

    Raises:
        RuntimeError: it is a link, or belongs to another user.
    """
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    status = folder.lstat()
    if status.st_uid != os.geteuid() or not stat.S_ISDIR(status.st_mode):
        raise RuntimeError(f"{folder} is not a folder of this user; remove it")
    folder.chmod(0o700)
    return folder


def user_folder() -> Path:
    """Create and return the private folder of this user's servers: below `TS_STATEFUL_RUNTIME_DIR`, or the temporary folder.

    Raises:
        RuntimeError: it belongs to another user.
    """
    base = os.environ.get("TS_STATEFUL_RUNTIME_DIR") or tempfile.gettempdir()
    return make_private(Path(base) / f"ts-stateful-{os.getuid()}")


def is_private(folder: Path) -> bool:
    """Return True if a folder belongs to this user and is closed to all others."""
    try:
        status = folder.lstat()
    except OSError:
        return False
    return (
        stat.S_ISDIR(status.st_mode)
        and status.st_uid == os.geteuid()
        and not status.st_mode & 0o077
    )
