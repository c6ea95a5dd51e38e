"""The bytes of a connection, read in blocks: many short fields cost one system call."""

from __future__ import annotations

import socket

__all__ = ["BlockReader", "ConnectionEnded"]

_BLOCK_BYTES = 1 << 16


class ConnectionEnded(OSError):
    """The other side has closed the connection."""

    def __init__(self) -> None:
        super().__init__("the other side has closed the connection")


class BlockReader:
    """The bytes of one connection. It reads ahead, so nothing else may read from that.

    All methods raise ConnectionEnded, or another OSError if the connection breaks.
    """

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection
        self._block = b""
        self._at = 0  # in the block

    def take(self, length: int) -> bytes | bytearray:
        """Read `length` bytes."""
        at, end = self._at, self._at + length
        if end <= len(self._block):
            self._at = end
            return self._block[at:end]
        taken = bytearray(self._block[at:])
        self._at = len(self._block)
        missing = length - len(taken)
        if missing >= _BLOCK_BYTES:  # a body, which goes to its place without a copy
            taken.extend(bytes(missing))
            self._read_into(taken, length - missing)
            return taken
        while missing > 0:
            self._fill()
            taken += self._block[:missing]
            self._at = min(missing, len(self._block))
            missing = length - len(taken)
        return taken

    def skip(self, length: int) -> None:
        """Read `length` bytes, and keep none."""
        self._at += length
        while self._at > len(self._block):
            beyond = self._at - len(self._block)
            self._fill()
            self._at = beyond

    def _fill(self) -> None:
        """Read the next block, which has a byte at least; the one before it was read to its end."""
        self._block, self._at = self._connection.recv(_BLOCK_BYTES), 0
        if not self._block:
            raise ConnectionEnded

    def _read_into(self, taken: bytearray, at: int) -> None:
        with memoryview(taken) as view:
            while at < len(taken):
                count = self._connection.recv_into(view[at:])
                if count == 0:
                    raise ConnectionEnded
                at += count
