"""The processes of an engine whose model is split."""

from __future__ import annotations

import os
import queue
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator

import pytest

from tests.support.many_files import many_files
from tests.support.worker import eventually
from ts_stateful.process.engine.ranks import DriverSocket, FollowerProcess, FollowerProcesses
from ts_stateful.process.worker.fork_server import has_ended

PATIENT_S, HASTY_S = 60.0, 0.0


class Pair:
    """A driver and a follower in one process; a child stands for the process of the follower."""

    def __init__(self, together_s: float) -> None:
        self.child = subprocess.Popen(["sleep", "600"])
        ours, theirs = socket.socketpair()
        self.ended: queue.SimpleQueue[int] = queue.SimpleQueue()
        process = FollowerProcess(1, self.child.pid, ours)
        self.followers = FollowerProcesses([process], together_s, self.ended.put)
        self.followers.watch()
        self.driver = DriverSocket(1, theirs)
        self.ours, self.theirs = ours, theirs
        self.watching = [one for one in threading.enumerate() if one.name == "rank-1"]

    def kill(self) -> None:
        """Kill the follower, whose end of the socket closes then."""
        self.child.kill()
        self.theirs.close()

    def stop(self) -> None:
        """End the child, and with it the thread that watches it."""
        self.kill()
        for thread in self.watching:
            thread.join()
        self.child.wait()
        self.ours.close()


@pytest.fixture
def pair() -> Iterator[Pair]:
    """A pair that waits for one another."""
    pair = Pair(PATIENT_S)
    yield pair
    pair.stop()


@pytest.fixture
def hasty() -> Iterator[Pair]:
    """A pair without patience."""
    pair = Pair(HASTY_S)
    yield pair
    pair.stop()


def test_a_process_of_many_files_has_followers() -> None:
    """The numbers of its sockets are above those that `select` accepts."""
    with many_files():
        pair = Pair(PATIENT_S)
        try:
            pair.followers.send(b"one")
            assert pair.driver.receive() == b"one"
        finally:
            pair.stop()


def test_messages_arrive_whole_and_in_order(pair: Pair) -> None:
    """Whatever their length is."""
    messages = [b"one", b"", os.urandom(1_000_000)]

    def send() -> None:
        for message in messages:
            pair.followers.send(message)

    sending = threading.Thread(target=send)
    sending.start()
    assert [pair.driver.receive() for _ in messages] == messages
    sending.join()


def test_ranks_that_fail_together_go_on(pair: Pair) -> None:
    """Whichever of them is first."""
    for _ in range(2):
        pair.followers.send(b"work")
        pair.driver.receive()
        pair.driver.report_failure()
        pair.followers.failed()
    assert pair.ended.empty()


def test_a_failure_of_the_driver_alone_ends_the_engine(
    hasty: Pair, caplog: pytest.LogCaptureFixture
) -> None:
    """Others wait for its part of the pass."""
    hasty.followers.send(b"work")
    hasty.followers.failed()
    assert hasty.ended.get() == 1
    assert "failed in the driver, and not in all other ranks" in caplog.text


def test_a_failure_of_a_follower_alone_ends_the_engine(
    hasty: Pair, caplog: pytest.LogCaptureFixture
) -> None:
    """The driver would wait for its part of the pass."""
    hasty.followers.send(b"work")
    hasty.driver.receive()
    hasty.driver.report_failure()
    assert hasty.ended.get() == 1
    assert "failed in rank 1, and not in the driver" in caplog.text


def test_the_end_of_a_follower_ends_the_engine(
    pair: Pair, caplog: pytest.LogCaptureFixture
) -> None:
    """The log names its rank."""
    pair.kill()
    assert pair.ended.get() == 1
    assert f"rank 1 (process {pair.child.pid}) exited with status -9" in caplog.text
    pair.followers.send(b"nobody receives this")


_FAMILY = """
import os, sys, time
from ts_stateful.process.engine.ranks import DriverSocket, fork_followers

ranks = fork_followers(2)
if isinstance(ranks, DriverSocket):
    while (message := ranks.receive()) is not None:
        os.write(1, b"%d %d\\n" % (ranks.rank, os.getpid()))
    time.sleep(600)  # as one that computes, and does not see the end
else:
    ranks.send(b"hello")
    time.sleep(600)
"""


def test_followers_die_with_their_driver() -> None:
    """Also if it is killed while they do not look."""
    with subprocess.Popen([sys.executable, "-c", _FAMILY], stdout=subprocess.PIPE) as driver:
        assert driver.stdout is not None
        found = dict(sorted(driver.stdout.readline().split() for _ in range(2)))
        assert list(found) == [b"1", b"2"]
        driver.send_signal(signal.SIGKILL)
        driver.wait()
        eventually(lambda: all(has_ended(int(pid)) for pid in found.values()))
