"""`python -m ts_stateful.torchserve.entrypoint COMMAND`: the first process of a container, which starts TorchServe.

When it is told to end (SIGTERM, SIGINT), engines finish what they have begun, with every connection still open, then TorchServe
is stopped. It outlives TorchServe until the last engine has ended: with the first process of a container all others are killed.
"""

from __future__ import annotations

import contextlib
import os
import queue
import signal
import subprocess
import sys
import threading
import uuid
from collections.abc import Sequence

import psutil

from ts_stateful.process.drain import descendants, drain, is_engine, is_torchserve, wait_ended

__all__ = ["main"]

_VARIABLE = "TS_STATEFUL_ENTRYPOINT"  # by which the processes of this container are known
# Its `put` may be interrupted by another one, unlike an event's `set`.
_Signals = queue.SimpleQueue[int]


class _Entrypoint:
    """The command, and what has come of it; `was_told` is whether it was to end."""

    def __init__(self, command: Sequence[str]) -> None:
        self.was_told = False
        self._name = uuid.uuid4().hex
        self._process = subprocess.Popen(command, env={**os.environ, _VARIABLE: self._name})
        # What is asked of `Popen` itself, beside `wait`, might take the status away from that.
        self._first = psutil.Process(self._process.pid)

    def stop_at(self, signals: _Signals) -> None:
        """Waits for a signal, and ends TorchServe, engines first."""
        signals.get()
        self.was_told = True
        drain(self._find_engines())
        servers = [one for one in descendants(_VARIABLE, self._name) if is_torchserve(one)]
        for process in servers or [self._first]:  # the command may not have come that far
            with contextlib.suppress(psutil.Error):
                process.terminate()

    def wait(self) -> int:
        """Waits for the command and then for engines that are left; the command's status, 128 and more for a signal."""
        while True:
            # Whoever is the first process inherits those that others leave behind.
            pid, status = os.wait()
            if pid == self._process.pid:
                break
        self._process.returncode = os.waitstatus_to_exitcode(status)
        wait_ended(self._find_engines())
        code = self._process.returncode
        return code if code >= 0 else 128 - code

    def _find_engines(self) -> list[psutil.Process]:
        return [one for one in descendants(_VARIABLE, self._name) if is_engine(one)]


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the command of the arguments; returns its exit status, or 0 where it was told to end."""
    command = list(sys.argv[1:] if arguments is None else arguments)
    if not command:
        sys.stderr.write(f"usage: {(__doc__ or '').splitlines()[0]}\n")
        return 2
    signals: _Signals = queue.SimpleQueue()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda number, _: signals.put(number))
    entrypoint = _Entrypoint(command)
    threading.Thread(target=entrypoint.stop_at, args=(signals,), daemon=True).start()
    status = entrypoint.wait()
    return 0 if entrypoint.was_told else status


if __name__ == "__main__":
    sys.exit(main())
