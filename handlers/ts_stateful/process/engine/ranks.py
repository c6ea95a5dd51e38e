"""The processes of an engine whose model is split: a driver, the engine itself, and a follower for each further device.

They are forked before the engine has threads. None outlives another: the kernel kills followers with their driver, and the
driver ends the engine when a follower exits.
"""

from __future__ import annotations

import ctypes
import logging
import os
import select
import signal
import socket
import struct
import threading
from collections.abc import Callable, Sequence
from typing import NamedTuple

from ts_stateful.memory import give_memory_back

__all__ = ["DriverSocket", "FollowerProcess", "FollowerProcesses", "fork_followers"]

logger = logging.getLogger("ts_stateful.engine")

_NUMBER = struct.Struct("!Q")  # the length of a message, or the number of one whose work failed
_TOGETHER_S = 5.0  # within which a failure must have happened in all ranks
_IDLE_S = 1.0  # without a message, after which memory is returned to the system
_PR_SET_PDEATHSIG = 1  # of prctl(2)


class FollowerProcess(NamedTuple):
    """A follower's rank, its process and the driver's end of the socket between them."""

    rank: int
    pid: int
    connection: socket.socket


class FollowerProcesses:
    """Implements `Followers`; a thread watches each process."""

    def __init__(
        self,
        processes: Sequence[FollowerProcess],
        together_s: float = _TOGETHER_S,
        end: Callable[[int], None] = os._exit,
    ) -> None:
        self._processes = processes
        self._together_s = together_s
        self._end_process = end
        self._num_sent = self._failed_here = 0
        self._failed_there = {process.rank: 0 for process in processes}
        self._failed = threading.Condition()

    def watch(self) -> None:
        """Begin to watch the processes."""
        for process in self._processes:
            name = f"rank-{process.rank}"
            threading.Thread(target=self._watch, args=(process,), name=name, daemon=True).start()

    def send(self, message: bytes) -> None:
        """See `Followers`."""
        self._num_sent += 1
        for process in self._processes:
            try:
                process.connection.sendall(_NUMBER.pack(len(message)) + message)
            except OSError as error:  # its thread sees the exit, and ends the engine
                logger.debug("rank %d cannot be reached: %s", process.rank, error)

    def failed(self) -> None:
        """See `Followers`. Ranks of which only some have failed would wait for one another for ever."""
        with self._failed:
            self._failed_here = self._num_sent
            self._failed.notify_all()
            together = self._failed.wait_for(
                lambda: min(self._failed_there.values()) >= self._num_sent, self._together_s
            )
        if not together:
            self._end("a pass failed in the driver, and not in all other ranks")

    def _watch(self, process: FollowerProcess) -> None:
        rank = process.rank
        while (number := _receive(process.connection, _NUMBER.size)) is not None:
            (failed,) = _NUMBER.unpack(number)
            with self._failed:
                self._failed_there[rank] = failed
                self._failed.notify_all()
                # Bound now: the next iteration has another number.
                is_same = self._failed.wait_for(
                    lambda failed=failed: self._failed_here >= failed,  # type: ignore[misc]
                    self._together_s,
                )
            if not is_same:
                self._end(f"a pass failed in rank {rank}, and not in the driver")
                return
        _, status = os.waitpid(process.pid, 0)
        code = os.waitstatus_to_exitcode(status)
        self._end(f"rank {rank} (process {process.pid}) exited with status {code}")

    def _end(self, reason: str) -> None:
        logger.error("the engine exits at once: %s", reason)
        self._end_process(1)


class DriverSocket:
    """Implements `DriverLink` in the process of a follower, whose number is `rank`."""

    def __init__(self, rank: int, connection: socket.socket) -> None:
        self.rank = rank
        self._connection = connection
        self._num_received = 0

    def receive(self) -> bytes | None:
        """See `DriverLink`."""
        if not self._wait(_IDLE_S):
            give_memory_back()
        length = _receive(self._connection, _NUMBER.size)
        if length is None:
            return None
        self._num_received += 1
        return _receive(self._connection, *_NUMBER.unpack(length))

    def wait_for_end(self, timeout_s: float) -> None:
        """Return after the driver has exited, or after `timeout_s`."""
        self._wait(timeout_s)

    def _wait(self, timeout_s: float) -> bool:
        """Return True when there is something to read, False after `timeout_s`."""
        poll = select.poll()  # `select` refuses numbers above 1,023
        poll.register(self._connection, select.POLLIN)
        return bool(poll.poll(1000 * timeout_s))

    def report_failure(self) -> None:
        """See `DriverLink`."""
        self._connection.sendall(_NUMBER.pack(self._num_received))


def fork_followers(count: int) -> FollowerProcesses | DriverSocket:
    """Fork `count` processes; return the followers in the caller, and the driver in each of them. For the only thread."""
    driver = os.getpid()
    processes: list[FollowerProcess] = []
    for rank in range(1, count + 1):
        ours, theirs = socket.socketpair()
        pid = os.fork()
        if pid == 0:
            for other in processes:  # or their end would not be seen
                other.connection.close()
            ours.close()
            _die_with(driver)
            return DriverSocket(rank, theirs)
        theirs.close()
        processes.append(FollowerProcess(rank, pid, ours))
    return FollowerProcesses(processes)


def _die_with(parent: int) -> None:
    """Let the kernel kill this process when the main thread of its parent exits."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, int(signal.SIGKILL))
    if os.getppid() != parent:  # it was too late for that
        os._exit(1)


def _receive(connection: socket.socket, size: int) -> bytes | None:
    """Return exactly so many bytes; None after the peer has exited."""
    data = bytearray()
    while len(data) < size:
        try:
            part = connection.recv(size - len(data))
        except OSError:
            return None
        if not part:
            return None
        data += part
    return bytes(data)
