"""Unix sockets between processes of one user: others are refused by their credentials, whatever the modes of files are."""

from __future__ import annotations

import logging
import os
import socket
import struct
from pathlib import Path

__all__ = ["MAX_SOCKET_PATH", "accept", "connect", "listen"]

logger = logging.getLogger(__name__)

MAX_SOCKET_PATH = 100
"""Bytes of a socket's path, of the 108 that the kernel allows."""

_CREDENTIALS = struct.Struct("3i")  # the kernel's `ucred`: pid, uid, gid


def listen(path: Path) -> socket.socket:
    """Return a listening socket at a path, in place of one that a process left there."""
    path.unlink(missing_ok=True)
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    listener.bind(str(path))
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
        connection.connect(str(path))
    except OSError:
        connection.close()
        return None
    if _is_trusted(connection):
        return connection
    path.unlink(missing_ok=True)
    return None


def _is_trusted(connection: socket.socket) -> bool:
    """Return True if the peer is a process of this user or of root; else close the connection."""
    data = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    _, uid, _ = _CREDENTIALS.unpack(data)
    if uid in (0, os.geteuid()):
        return True
    logger.warning("a connection with a process of user %d is refused: not of this user", uid)
    connection.close()
    return False
