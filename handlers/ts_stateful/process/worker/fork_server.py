"""Engine processes that start in a moment: forks of a process that has imported all that they need.

Importing torch and transformers is most of what an engine does before it loads its model. Behind a crash that would be most of
the pause, so one process for each worker imports once and forks every engine; engines share that memory as long as nobody
writes to it. An engine on a GPU imports for itself: imports may initialize the GPU's driver, which does not survive a fork.
Owns both ends of this: `ForkServer` is the worker's, `main` runs in the other process, which does nothing but import and fork,
in one thread of Python, and ends when its worker does. Knows no engine.
"""

from __future__ import annotations

import contextlib
import gc
import os
import select
import signal
import socket
import subprocess
import sys
import threading
import weakref
from collections.abc import Mapping
from pathlib import Path
from typing import IO, NamedTuple

import msgspec
import psutil

from ts_stateful.process.names import FORK_SERVER, take_name
from ts_stateful.process.spec import EngineSpec

__all__ = ["ForkServer", "ForkedEngine", "has_ended"]

_SPIN_COUNT = "2000"  # some microseconds; then a waiting thread sleeps
_MAX_PATH = 4096


class ForkedEngine:
    """An engine process that is started: it has a `pid` as soon as it is forked, and a `status` when its end was told."""

    def __init__(self, reports: int) -> None:
        os.set_blocking(reports, False)
        self._reports = reports
        self._close = weakref.finalize(self, os.close, reports)
        self._text = b""
        self._lock = threading.Lock()
        self.pid: int | None = None
        self.status: int | None = None

    def has_ended(self) -> bool:
        """Whether it lives no more, or never will."""
        with self._lock:
            while self._close.alive:
                try:
                    self._hear(os.read(self._reports, 64))
                except BlockingIOError:
                    return False
        # Without a status the fork server is gone, and what has become of the engine has to be looked after.
        return self.status is not None or self.pid is None or has_ended(self.pid)

    def _hear(self, part: bytes) -> None:
        self._text += part
        numbers = [int(line) for line in self._text.split(b"\n")[:-1]]
        self.pid, self.status = (*numbers, None, None)[:2]
        if not part or self.status is not None:
            self._close()


class ForkServer:
    """The process that forks a worker's engines; it is started when there is something to fork."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._control: socket.socket | None = None

    def fork(self, spec: EngineSpec, lock: IO[str], log: IO[bytes]) -> ForkedEngine:
        """Starts the engine of a spec, which keeps `lock` open for as long as it lives, and writes to `log`."""
        reports, reporting = os.pipe()
        try:
            message, files = os.fsencode(spec.save()), (lock.fileno(), log.fileno(), reporting)
            with self._lock:
                try:
                    socket.send_fds(self._connection(log), [message], files)
                except OSError:  # it was killed
                    self._end()
                    socket.send_fds(self._connection(log), [message], files)
        except BaseException:
            os.close(reports)
            raise
        finally:
            os.close(reporting)
        return ForkedEngine(reports)

    def prepare(self, spec: EngineSpec, log: IO[bytes]) -> None:
        """Has everything imported that the engine of a spec needs, which runs already, for the one after it."""
        # Where it was killed, the next engine takes longer.
        with self._lock, contextlib.suppress(OSError):
            self._connection(log).send(os.fsencode(spec.save()))

    def close(self) -> None:
        """Ends it; its engines go on."""
        with self._lock:
            self._end()

    def _connection(self, log: IO[bytes]) -> socket.socket:
        if self._control is None:
            self._control, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            with theirs:
                # A session of its own: signals to the worker's group and the end of its pipes do not reach the engines.
                self._process = subprocess.Popen(
                    [sys.executable, "-m", __name__, str(theirs.fileno())],
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                    start_new_session=True,
                    pass_fds=(theirs.fileno(),),
                    env=_environment(os.environ),
                )
        return self._control

    def _end(self) -> None:
        if self._control is not None:
            self._control.close()
            self._control = None
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None


def has_ended(pid: int) -> bool:
    """Whether a process lives no more, whoever's child it is."""
    try:
        return bool(psutil.Process(pid).status() == psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return True


def _environment(environ: Mapping[str, str]) -> dict[str, str]:
    """The worker's, with the place of this package, and with how an engine's threads wait unless the operator has said it.

    By default OpenMP's threads spin for long. On cores that they share with TorchServe's JVM and worker they spin while the
    thread that they wait for is not running, which was measured to make a step up to ten times as long.
    """
    paths = [str(Path(__file__).parents[3]), *filter(None, [environ.get("PYTHONPATH")])]
    said = {"GOMP_SPINCOUNT", "OMP_WAIT_POLICY"} & environ.keys()
    waiting = {} if said else {"GOMP_SPINCOUNT": _SPIN_COUNT}
    return {**environ, **waiting, "PYTHONPATH": os.pathsep.join(paths)}


class _Request(NamedTuple):
    spec_path: Path
    lock: int
    log: int
    reporting: int


class _Server:
    """The other end. `serve` returns what to run in each of its forks, and None where it is called when the worker is gone."""

    def __init__(self, control: socket.socket) -> None:
        self._control = control
        self._reporting: dict[int, int] = {}  # of each child
        self._wake, waking = os.pipe()
        self._pipe = (self._wake, waking)
        for end in self._pipe:
            os.set_blocking(end, False)
        signal.set_wakeup_fd(waking)
        signal.signal(signal.SIGCHLD, lambda *_: None)

    def serve(self) -> _Request | None:
        """Imports and forks as it is told."""
        while True:
            readable, _, _ = select.select([self._control.fileno(), self._wake], [], [])
            if self._wake in readable:
                self._reap()
            if self._control.fileno() in readable:
                message, files, _, _ = socket.recv_fds(self._control, _MAX_PATH, 3)
                if not message:
                    return None
                spec_path = Path(os.fsdecode(message))
                on_cpu = self._prepare(spec_path)
                if files and self._fork(request := _Request(spec_path, *files), on_cpu=on_cpu):
                    return request

    def _prepare(self, spec_path: Path) -> bool:
        """Imports what an engine needs, if it is to be forked with it; returns whether it is."""
        try:
            on_cpu = EngineSpec.load(spec_path).device == "cpu"
        except (OSError, msgspec.MsgspecError):
            return False  # gone with its TorchServe; an engine tells that itself
        if on_cpu:
            from ts_stateful.process.engine.main import preload  # noqa: PLC0415 - not in a worker

            preload(spec_path)
            gc.freeze()  # or collections would write to the memory that is shared
        return on_cpu

    def _reap(self) -> None:
        os.read(self._wake, 512)
        with contextlib.suppress(ChildProcessError):
            while (ended := os.waitpid(-1, os.WNOHANG))[0]:
                pid, status = ended
                _report(self._reporting[pid], os.waitstatus_to_exitcode(status))
                os.close(self._reporting.pop(pid))

    def _fork(self, request: _Request, *, on_cpu: bool) -> bool:
        """Whether this is the fork."""
        pid = os.fork()
        if pid == 0:
            self._become_child(request)
            if not on_cpu:
                command = [sys.executable, "-m", "ts_stateful.process.engine.main"]
                os.execv(command[0], [*command, str(request.lock), str(request.spec_path)])
            return True
        self._reporting[pid] = request.reporting
        _report(request.reporting, pid)
        os.close(request.lock)
        os.close(request.log)
        return False

    def _become_child(self, request: _Request) -> None:
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        os.setsid()
        self._control.close()
        for number in (*self._pipe, *self._reporting.values(), request.reporting):
            os.close(number)
        numpy_random = sys.modules.get("numpy.random")
        if numpy_random is not None:  # Python's own does so by itself
            numpy_random.seed()
        os.dup2(request.log, sys.stdout.fileno())
        os.dup2(request.log, sys.stderr.fileno())
        os.close(request.log)


def _report(reporting: int, number: int) -> None:
    with contextlib.suppress(BrokenPipeError):  # nobody asks any more
        os.write(reporting, b"%d\n" % number)


def main(control: int) -> int:
    """Forks engines until the worker is gone; returns the exit status, in each of the forks that of its engine."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    take_name(FORK_SERVER)
    request = _Server(socket.socket(fileno=control)).serve()
    if request is None:
        return 0
    from ts_stateful.process.engine.main import main as run_engine  # noqa: PLC0415 - as above

    return run_engine(request.lock, request.spec_path)


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1])))
