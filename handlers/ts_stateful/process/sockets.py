"""Unix sockets between processes of one user: others are refused by their credentials, whatever the modes of files are."""

from __future__ import annotations

import contextlib
import logging
import os
import socket
import struct
from collections.abc import Iterator
from pathlib import Path

__all__ = ["accept", "connect", "listen"]

logger = logging.getLogger(__name__)

_CREDENTIALS = struct.Struct("3i")  # the kernel's `ucred`: pid, uid, gid


def listen(path: Path) -> socket.socket:
    """Return a listening socket at a path, in place of one that a process left there."""
    path.unlink(missing_ok=True)
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    with _short(path) as name:
        listener.bind(name)
    path.chmod(0o600)
    listener.listen()
    return listener


def accept(listener: socket.socket) -> socket.socket | None:
    """Wait for a connection and return it; None if it is that of another user, which is closed.

    Raises:
        OSError: no connection can be accepted now.
    """
    connection, _ = listener.accept()
    return connection if _is_trusted(connection) else None


def connect(path: Path) -> socket.socket | None:
    """Connect to a process; return None if there is none. A socket of another user is removed."""
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        with _short(path) as name:
            connection.connect(name)
    except OSError:
        connection.close()
        return None
    if _is_trusted(connection):
        return connection
    path.unlink(missing_ok=True)
    return None


@contextlib.contextmanager
def _short(path: Path) -> Iterator[str]:
    """Return another path of a file, because the kernel takes 108 bytes for a socket."""
    folder = os.open(path.parent, os.O_PATH | os.O_DIRECTORY)
    try:
        yield f"/proc/self/fd/{folder}/{path.name}"
    finally:
        os.close(folder)


def _is_trusted(connection: socket.socket) -> bool:
    """Return True if the peer is a process of this user or of root; else close the connection."""
    data = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    _, uid, _ = _CREDENTIALS.unpack(data)
    if uid in (0, os.geteuid()):
        return True
    logger.warning("a connection with a process of user %d is refused: not of this user", uid)
    connection.close()
    return False
