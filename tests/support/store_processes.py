"""Processes that use a file store: some are killed before each of their steps, others race.

`python -m tests.support.store_processes kill FOLDER OPERATION` prints the number of steps of the operation. `race FOLDER COUNT`
waits for a line on standard input and prints a digit for each key: 1 if it created the key.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.support.clock import FakeClock
from ts_stateful.store.backends.file import FileStore

VALUE = b"value" * 1000
_LIFE_S = 10_000.0  # longer than any test
_STEPS = {
    "fcntl.flock",
    "open",
    "os.link",
    "os.mkdir",
    "os.remove",
    "os.rename",
    "os.rmdir",
    "os.scandir",
}


def main() -> None:
    """Run the command line."""
    task, folder, argument = sys.argv[1:]
    if task == "kill":
        print(_kill_at_each_step(Path(folder), argument))
    else:
        _race(Path(folder), int(argument))


def _kill_at_each_step(folder: Path, operation: str) -> int:
    """Kill child N before step N. Return the number of the first child that ends by itself."""
    for number in range(1000):
        store = FileStore(folder / str(number), fsync=number % 2 == 1)
        operate = _prepared(store, operation)
        pid = os.fork()
        if pid == 0:
            _die_before(number)
            operate()
            os._exit(0)
        _, status = os.waitpid(pid, 0)
        if not os.WIFSIGNALED(status):
            assert status == 0
            return number
    raise AssertionError("the operation has more than 1,000 steps")


def _prepared(store: FileStore, operation: str) -> Callable[[], object]:
    if operation == "create":
        return lambda: store.create("sessions/a/00000000", VALUE, ttl_s=_LIFE_S)
    for position in range(4):
        store.create(f"sessions/a/{position:08d}", VALUE, ttl_s=_LIFE_S)
    if operation == "prolong":
        return lambda: store.create("sessions/a/00000000", VALUE)
    if operation == "delete":
        return lambda: store.delete("sessions/a")
    later = FileStore(store.folder, clock=FakeClock(1e11))
    return later.sweep


def _die_before(number: int) -> None:
    count = 0

    def hook(event: str, arguments: Any) -> None:
        nonlocal count
        if event in _STEPS:
            if count == number:
                os.kill(os.getpid(), signal.SIGKILL)
            count += 1

    sys.addaudithook(hook)


def _race(folder: Path, num_keys: int) -> None:
    store = FileStore(folder)
    own = b"%d" % os.getpid()
    print("ready", flush=True)
    sys.stdin.readline()
    won = [store.create(f"race/{n}", own) for n in range(num_keys)]
    print("".join(str(int(one)) for one in won))


if __name__ == "__main__":
    main()
