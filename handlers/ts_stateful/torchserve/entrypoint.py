"""`python -m ts_stateful.torchserve.entrypoint COMMAND`: the first process of a container, which starts TorchServe.

The command gets a private temporary folder. TorchServe has its sockets and unpacked models there.

Three classes of TorchServe are mended in the working directory. If TorchServe loses the worker of a model all the same,
the entrypoint replaces it. On SIGTERM or SIGINT, engines finish their requests with all connections open, and TorchServe
stops after them. The entrypoint waits for the last engine, because all processes of a container are killed with the first one.
"""

from __future__ import annotations

import contextlib
import os
import queue
import signal
import subprocess
import sys
import tempfile
import threading
import uuid
from collections.abc import Sequence
from pathlib import Path

import psutil

from ts_stateful.process.drain import descendants, drain, is_engine, is_torchserve, wait_ended
from ts_stateful.process.private import is_private, make_private
from ts_stateful.serving.server_log import ServerLog
from ts_stateful.torchserve.guard import Guard, is_watched
from ts_stateful.torchserve.mended_classes import MendFailed, write_mended
from ts_stateful.torchserve.properties import management_of

__all__ = ["main"]

_VARIABLE = "TS_STATEFUL_ENTRYPOINT"  # marks the processes of this container
_FIND_S = 1.0  # between two looks for TorchServe, which starts
# Its `put` may be interrupted by another `put`, unlike an event's `set`.
_Signals = queue.SimpleQueue[int]


class _Entrypoint:
    """The command and its process. `was_stopped` is True after a signal to stop it."""

    def __init__(self, command: Sequence[str]) -> None:
        self.was_stopped = False
        self._name = uuid.uuid4().hex
        self._stopping = threading.Event()
        self._process = subprocess.Popen(command, env={**_environment(), _VARIABLE: self._name})
        # Methods of `Popen` might take the exit status, which `wait` needs.
        self._first = psutil.Process(self._process.pid)

    def watch(self) -> None:
        """Wait for TorchServe, and watch its models until a signal to stop it."""
        servers: list[psutil.Process] = []
        while not servers and not self._stopping.wait(_FIND_S):
            servers = self._find_servers()
        log = ServerLog(echo=sys.stderr)
        for server in servers:
            try:
                guard = Guard(management_of(server), log)
            except (psutil.Error, ValueError) as error:  # it has exited, or has no HTTP address
                log.line(f"error: no repairs: {error}")
                continue
            guard.start()
            self._stopping.wait()
            guard.stop()

    def stop_at(self, signals: _Signals) -> None:
        """Wait for a signal, drain the engines, and stop TorchServe."""
        signals.get()
        self.was_stopped = True
        self._stopping.set()
        drain(self._find_engines())
        # The command may not have started it yet.
        for process in self._find_servers() or [self._first]:
            with contextlib.suppress(psutil.Error):
                process.terminate()

    def wait(self) -> int:
        """Wait for the command and then for its engines; return the command's status, or 128 plus the number of a signal."""
        while True:
            # The first process inherits the orphans of all others.
            pid, status = os.wait()
            if pid == self._process.pid:
                break
        self._process.returncode = os.waitstatus_to_exitcode(status)
        wait_ended(self._find_engines())
        code = self._process.returncode
        return code if code >= 0 else 128 - code

    def _find_engines(self) -> list[psutil.Process]:
        return [one for one in descendants(_VARIABLE, self._name) if is_engine(one)]

    def _find_servers(self) -> list[psutil.Process]:
        return [one for one in descendants(_VARIABLE, self._name) if is_torchserve(one)]


def _environment() -> dict[str, str]:
    """Return the environment with a temporary folder of this user alone: the same at every start, as the store may be in it."""
    found = Path(tempfile.gettempdir())
    made = found if is_private(found) else make_private(found / f"ts-stateful-{os.geteuid()}-tmp")
    folder = str(made)
    # Python passes over a TMPDIR whose disk is full, and Java gets TEMP.
    return {"TS_STATEFUL_RUNTIME_DIR": folder, **os.environ, "TMPDIR": folder, "TEMP": folder}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command of the arguments; return its exit status, or 0 if a signal stopped it."""
    command = list(sys.argv[1:] if arguments is None else arguments)
    if not command:
        sys.stderr.write(f"usage: {(__doc__ or '').splitlines()[0]}\n")
        return 2
    signals: _Signals = queue.SimpleQueue()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda number, _: signals.put(number))
    if is_watched(os.environ):
        try:
            os.environ |= write_mended(Path.cwd())
        except MendFailed as error:
            sys.stderr.write(f"warning: a client can stop a worker: {error}\n")
    try:
        entrypoint = _Entrypoint(command)
    except RuntimeError as error:
        sys.stderr.write(f"error: {error}\n")
        return 2
    threading.Thread(target=entrypoint.stop_at, args=(signals,), daemon=True).start()
    if is_watched(os.environ):
        threading.Thread(target=entrypoint.watch, daemon=True).start()
    status = entrypoint.wait()
    return 0 if entrypoint.was_stopped else status


if __name__ == "__main__":
    sys.exit(main())
