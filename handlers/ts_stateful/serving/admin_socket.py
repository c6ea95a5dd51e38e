"""The Unix socket of a server's administration, and the way to find it."""

from __future__ import annotations

import contextlib
import os
import socket
import stat
from pathlib import Path

from ts_stateful.process.private import make_private, user_folder
from ts_stateful.process.sockets import connect, listen
from ts_stateful.serving.local import ServerFailed

__all__ = ["AdminSocket", "newest_admin_socket"]

_NAME = "admin.sock"
_MAX_PATH = 100  # bytes, of the 108 that the kernel takes from clients


class AdminSocket:
    """A listening socket of mode 0600, with a link in a folder of this user by which the command finds it.

    Raises:
        ServerFailed: the path is too long, not writable, or in use.
    """

    def __init__(self, path: Path, name: str) -> None:
        self.path = path
        self._link = _links() / f"{name}.sock"
        self.listener = _listen(path)
        self._link.unlink(missing_ok=True)
        self._link.symlink_to(path)

    @classmethod
    def open(cls, chosen: Path | None, state_dir: Path | None, home: Path) -> AdminSocket:
        """Open the socket of the server in the folder `home`: at the `chosen` path, else in `state_dir`, else in `home`.

        Another server may use the same state folder, or its path may be too long; then it is the one in `home`.
        """
        if chosen is not None:
            return cls(chosen.absolute(), home.name)
        if state_dir is not None:
            with contextlib.suppress(ServerFailed):
                return cls(state_dir.absolute() / _NAME, home.name)
        return cls(home / _NAME, home.name)

    def close(self) -> None:
        """Close and remove the socket."""
        self.listener.close()
        for path in (self._link, self.path):
            with contextlib.suppress(OSError):
                path.unlink(missing_ok=True)


def newest_admin_socket() -> Path | None:
    """Return the socket of the server of this user that was started last; None if none runs.

    Raises:
        ServerFailed: the folder with the links is not this user's.
    """
    links = sorted(_links().glob("*.sock"), key=lambda link: link.lstat().st_mtime, reverse=True)
    for link in links:
        connection = connect(link)
        if connection is not None:
            connection.close()
            return Path(os.path.realpath(link))
        with contextlib.suppress(OSError):  # of a server that was killed
            link.unlink()
    return None


def _links() -> Path:
    try:
        return make_private(user_folder() / "admin")
    except (RuntimeError, OSError) as error:
        raise ServerFailed(f"{error}, or choose another folder (TS_STATEFUL_RUNTIME_DIR)") from None


def _listen(path: Path) -> socket.socket:
    remedy = "choose another path (--admin-socket)"
    if len(os.fsencode(path)) > _MAX_PATH:
        raise ServerFailed(
            f"{path} has more than {_MAX_PATH} bytes, too many for a socket; {remedy}"
        )
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        if path.exists() and not stat.S_ISSOCK(path.stat().st_mode):
            raise ServerFailed(f"{path} is a file, not a socket; remove it, or {remedy}")
        connection = connect(path)
        if connection is None:
            return listen(path)
    except OSError as error:
        raise ServerFailed(f"{path}: {error.strerror}; {remedy}") from None
    connection.close()
    raise ServerFailed(f"{path} is in use by another server; {remedy}")
