"""The exit of a worker whose connection TorchServe has closed."""

from __future__ import annotations

import socket
import subprocess
import sys

from ts_stateful.frontend.delivery.torchserve_wire import exit_at_hangup

# A thread that never ends keeps the process, as TorchServe's threads of the async profile do.
WORKER = """
import socket, sys, threading
from ts_stateful.frontend.delivery.torchserve_wire import exit_at_hangup

connection = socket.socket(fileno=int(sys.argv[1]))
threading.Thread(target=threading.Event().wait).start()
exit_at_hangup(connection)
exit_at_hangup(connection)
connection.sendall(b"r")
"""


def test_a_worker_exits_when_its_connection_closes() -> None:
    """Whatever its other threads do; until then it runs, and data that comes is left to them."""
    ours, theirs = socket.socketpair()
    with ours, theirs:
        command = [sys.executable, "-c", WORKER, str(theirs.fileno())]
        with subprocess.Popen(command, pass_fds=[theirs.fileno()]) as worker:
            theirs.close()
            assert ours.recv(1) == b"r"
            ours.sendall(b"request")
            assert worker.poll() is None
            ours.close()
            assert worker.wait(60) == 1


def test_what_is_no_socket_is_ignored() -> None:
    """As in a test, or in a worker without a connection."""
    exit_at_hangup(None)
