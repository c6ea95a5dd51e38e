"""A process that imports what engines need once, and forks all engines of a worker.

Imports of torch and transformers take most of an engine's start, and so most of the pause after a crash. Forked engines share
the imported memory until they write to it. An engine on a GPU imports for itself: imports may initialize the GPU's driver,
which does not survive a fork.

`multiprocessing.forkserver` does not fit. At its exit a worker would join or terminate the children, but engines survive it.
The server would share the worker's session, environment and output, and could not be replaced when it hangs.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import socket
import subprocess
import sys
import threading
import weakref
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import IO, NamedTuple

import msgspec
import psutil

from ts_stateful.memory import without_collections
from ts_stateful.process.names import FORK_SERVER, take_name
from ts_stateful.process.spec import EngineSpec

__all__ = ["ForkServer", "ForkedEngine", "has_ended"]

_SPIN_COUNT = "2000"  # some microseconds, after which a waiting thread sleeps
_MAX_PATH = 4096


class ForkedEngine:
    """An engine process: `pid` is set when it is forked, `status` when the fork server reports its exit."""

    def __init__(self, reports: int) -> None:
        os.set_blocking(reports, False)
        self._reports = reports
        self._close = weakref.finalize(self, os.close, reports)
        self._text = b""
        self._lock = threading.Lock()
        self.pid: int | None = None
        self.status: int | None = None

    def has_ended(self) -> bool:
        """Return True if the process has exited or will never start."""
        with self._lock:
            while self._close.alive:
                try:
                    self._parse(os.read(self._reports, 64))
                except BlockingIOError:
                    return False
        # If the reports ended without a status, the fork server has exited.
        return self.status is not None or self.pid is None or has_ended(self.pid)

    def _parse(self, part: bytes) -> None:
        self._text += part
        numbers = [int(line) for line in self._text.split(b"\n")[:-1]]
        self.pid, self.status = (*numbers, None, None)[:2]
        if not part or self.status is not None:
            self._close()


class ForkServer:
    """A worker's side of its fork server, which starts with the first request."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._control: socket.socket | None = None

    def fork(self, spec: EngineSpec, lock: IO[str], log: IO[bytes]) -> ForkedEngine:
        """Start the engine of a spec, which keeps `lock` open until it exits, and writes to `log`."""
        reports, reporting = os.pipe()
        engine = ForkedEngine(reports)
        try:
            message, files = os.fsencode(spec.save()), (lock.fileno(), log.fileno(), reporting)
            with self._lock:
                try:
                    socket.send_fds(self._connection(log), [message], files)
                except OSError:  # it was killed
                    self._end()
                    socket.send_fds(self._connection(log), [message], files)
        finally:
            os.close(reporting)
        return engine

    def prepare(self, spec: EngineSpec, log: IO[bytes]) -> None:
        """Import what the successor of a running engine needs."""
        # If the server was killed, the next engine starts more slowly.
        with self._lock, contextlib.suppress(OSError):
            self._connection(log).send(os.fsencode(spec.save()))

    def close(self) -> None:
        """Kill the fork server; its engines go on."""
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
    """Return True if a process has exited, whichever process is its parent."""
    try:
        process = psutil.Process(pid)
        # While other threads of a zombie exit, its socket may still accept connections.
        return bool(process.status() == psutil.STATUS_ZOMBIE and process.num_threads() == 1)
    except psutil.NoSuchProcess:
        return True


def _environment(environ: Mapping[str, str]) -> dict[str, str]:
    """Return the worker's environment with this package's path and, unless the operator has set it, a short spin of threads.

    Without docstrings, which PYTHONOPTIMIZE=2 removes, transformers cannot define its models.
    OpenMP's threads spin for long by default. On cores shared with TorchServe's JVM and worker, they spin while the thread that
    they wait for is not running. Steps were measured to take up to ten times as long.
    """
    paths = [str(Path(__file__).parents[3]), *filter(None, [environ.get("PYTHONPATH")])]
    chosen = {"GOMP_SPINCOUNT", "OMP_WAIT_POLICY"} & environ.keys()
    waiting = {} if chosen else {"GOMP_SPINCOUNT": _SPIN_COUNT}
    return {**environ, **waiting, "PYTHONPATH": os.pathsep.join(paths), "PYTHONOPTIMIZE": ""}


class _ForkRequest(NamedTuple):
    spec_path: Path
    lock: int
    log: int
    reporting: int


class _Forker:
    """The fork server itself, with one Python thread."""

    def __init__(self, control: socket.socket) -> None:
        self._control = control
        self._reporting: dict[int, int] = {}  # pipes, by child
        self._wake, self._waking = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        signal.set_wakeup_fd(self._waking)
        signal.signal(signal.SIGCHLD, lambda *_: None)

    def serve(self) -> _ForkRequest | None:
        """Import and fork on request. Return the request in each fork, and None in the server after the worker has exited."""
        # `select` refuses numbers above 1,023, which are left where a worker has many connections.
        poll = select.poll()
        poll.register(self._control, select.POLLIN)
        poll.register(self._wake, select.POLLIN)
        while True:
            readable = dict(poll.poll())
            if self._wake in readable:
                self._reap()
            if self._control.fileno() in readable:
                message, files, _, _ = socket.recv_fds(self._control, _MAX_PATH, 3)
                if not message:
                    return None
                spec_path = Path(os.fsdecode(message))
                on_cpu = self._prepare(spec_path)
                if files and self._fork(request := _ForkRequest(spec_path, *files), on_cpu=on_cpu):
                    return request

    def _prepare(self, spec_path: Path) -> bool:
        """Import what an engine on the CPU needs; return False if the engine imports for itself."""
        try:
            on_cpu = EngineSpec.load(spec_path).device == "cpu"
        except (OSError, msgspec.MsgspecError):
            return False  # removed with its TorchServe; an engine reports that itself
        if on_cpu:
            with _ending_with(self._control), without_collections():
                from ts_stateful.process.engine.main import preload  # noqa: PLC0415 - not in a worker

                preload(spec_path)
        return on_cpu

    def _reap(self) -> None:
        os.read(self._wake, 512)
        with contextlib.suppress(ChildProcessError):
            while (ended := os.waitpid(-1, os.WNOHANG))[0]:
                pid, status = ended
                _report(self._reporting[pid], os.waitstatus_to_exitcode(status))
                os.close(self._reporting.pop(pid))

    def _fork(self, request: _ForkRequest, *, on_cpu: bool) -> bool:
        """Fork; return True in the child."""
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

    def _become_child(self, request: _ForkRequest) -> None:
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        os.setsid()
        self._control.close()
        for number in (self._wake, self._waking, *self._reporting.values(), request.reporting):
            os.close(number)
        numpy_random = sys.modules.get("numpy.random")
        if numpy_random is not None:  # Python's own seeds itself
            numpy_random.seed()
        os.dup2(request.log, sys.stdout.fileno())
        os.dup2(request.log, sys.stderr.fileno())
        os.close(request.log)


@contextlib.contextmanager
def _ending_with(worker: socket.socket) -> Iterator[None]:
    """Exit if the worker exits while the block imports for seconds, which would slow down the start of the next worker.

    A thread does that. It has ended when the block is left, because only one thread survives a fork.
    """
    over, leaving = os.pipe()

    def watch() -> None:
        poll = select.poll()
        poll.register(worker, 0)  # its end is always reported
        poll.register(over, 0)
        if worker.fileno() in dict(poll.poll()):
            os._exit(0)

    thread = threading.Thread(target=watch)
    thread.start()
    try:
        yield
    finally:
        os.close(leaving)
        thread.join()
        os.close(over)


def _report(reporting: int, number: int) -> None:
    with contextlib.suppress(BrokenPipeError):  # the worker has exited, or has dropped the engine
        os.write(reporting, b"%d\n" % number)


def main(control: int) -> int:
    """Fork engines until the worker exits. Return the exit status of the server, or in each fork of its engine."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    take_name(FORK_SERVER)
    request = _Forker(socket.socket(fileno=control)).serve()
    if request is None:
        return 0
    from ts_stateful.process.engine.main import main as run_engine  # noqa: PLC0415 - as above

    return run_engine(request.lock, request.spec_path)


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1])))
