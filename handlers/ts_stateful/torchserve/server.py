"""A TorchServe process: starts one for an archive, waits until it answers, and stops all of it again.

Owns the server's processes and its private folder (working directory, temporary files, properties). `make serve`, the demo and
the end-to-end tests all start TorchServe through here. Knows nothing of sessions, and needs neither torch nor TorchServe's
Python API: it runs the stock `torchserve` command.
"""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import deque
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TextIO

import psutil

from ts_stateful.process.drain import descendants, drain, is_engine
from ts_stateful.torchserve.java import java_environment
from ts_stateful.torchserve.ports import HOST, Ports

__all__ = ["ServerFailed", "TorchServe"]

_POLL_S = 0.1
_ANSWER_S = 30.0  # of a busy JVM, whose answers take milliseconds otherwise
_STOP_S = 20.0  # after SIGTERM; then SIGKILL
_ENGINES_STOP_S = 60.0  # longer than they take for what they have begun; then SIGKILL
_TAIL_LINES = 60
_LOAD_FAILED = ("Load model failed", "Failed to load model")


class ServerFailed(RuntimeError):
    """TorchServe did not come up, or ended by itself; the message ends with the tail of its log."""


class TorchServe:
    """One TorchServe in a process group of its own. A context manager: entering starts, leaving stops, in all cases.

    Args:
        archive: a .mar file, or the folder of a `no-archive`.
        config: the config.properties to start from; addresses in it are replaced by `ports` on loopback.
        log_config: a log4j2.xml.
        log_file: takes what the server prints (appended); None keeps only the tail in memory.
        echo: also gets what the server prints.
        environ: variables set on top of this process's own.
        start_timeout_s: how long loading the model may take.
    """

    def __init__(
        self,
        archive: Path,
        *,
        config: Path,
        log_config: Path,
        name: str = "chat",
        ports: Ports | None = None,
        log_file: Path | None = None,
        echo: TextIO | None = None,
        environ: Mapping[str, str] | None = None,
        start_timeout_s: float = 120.0,
    ) -> None:
        self.archive = archive.resolve()
        self.config = config.resolve()
        self.log_config = log_config.resolve()
        self.name = name
        self.ports = (ports or Ports()).filled()
        self.log_file = log_file
        self.start_timeout_s = start_timeout_s
        self._echo = echo
        self._environ = dict(environ or {})
        self._tail: deque[str] = deque(maxlen=_TAIL_LINES)
        self._load_failed = False
        self._process: subprocess.Popen[str] | None = None
        self._pump: threading.Thread | None = None
        self._home: Path | None = None

    @property
    def http_url(self) -> str:
        """Where inference requests go."""
        return f"http://{HOST}:{self.ports.http}"

    @property
    def management_url(self) -> str:
        """TorchServe's management API."""
        return f"http://{HOST}:{self.ports.management}"

    @property
    def metrics_url(self) -> str:
        """TorchServe's metrics, in Prometheus's format under /metrics."""
        return f"http://{HOST}:{self.ports.metrics}"

    @property
    def grpc_url(self) -> str:
        """Where inference calls go, as `ts_stateful.client.connect` takes it."""
        return f"grpc://{HOST}:{self.ports.grpc}"

    def __enter__(self) -> TorchServe:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def start(self) -> None:
        """Starts TorchServe and returns when the model answers.

        Raises:
            ServerFailed: a port is taken, it ended, could not load the model, or took longer than `start_timeout_s`.
            JavaMissing: there is no Java to run it.
        """
        assert self._process is None, "started twice"
        taken = self.ports.taken()
        if taken:  # by another server, which might even answer in the place of this one
            raise ServerFailed(f"in use on {HOST}: port {', '.join(map(str, taken))}")
        try:
            self._spawn()
            self._wait_ready()
        except BaseException:
            self.stop()
            raise

    def wait(self) -> None:
        """Blocks until TorchServe ends by itself; interrupt it with KeyboardInterrupt."""
        assert self._process is not None, "not started"
        self._process.wait()

    def stop(self) -> None:
        """Has engines finish what they have begun, and stops everything; may be called at any time, and again."""
        process, self._process = self._process, None
        try:
            if process is not None:
                self._end(process)
        finally:
            if self._pump is not None:
                self._pump.join(timeout=5)
                self._pump = None
            if self._home is not None:
                shutil.rmtree(self._home, ignore_errors=True)
                self._home = None

    def log_tail(self) -> str:
        """The last lines that the server printed, and those of its engines' logs."""
        parts = ["".join(self._tail)]
        for path in sorted(self._home.rglob("engine-*.log")) if self._home is not None else ():
            with contextlib.suppress(OSError):
                lines = path.read_text(errors="replace").splitlines(keepends=True)
                parts.append(f"{path.name}:\n{''.join(lines[-_TAIL_LINES:])}")
        return "\n".join(parts)

    def describe(self) -> dict[str, Any]:
        """What TorchServe's management API says about the model.

        Raises:
            OSError: it does not answer.
            ValueError: it answers something else than a description.
        """
        answer = _get_json(self.ports.management, f"/models/{self.name}")
        if not isinstance(answer, list) or len(answer) != 1 or not isinstance(answer[0], dict):
            raise ValueError(f"not a description of one model: {answer}")
        return answer[0]

    def is_ready(self) -> bool:
        """Whether the server is healthy and every worker of the model is ready."""
        try:
            health = _get_json(self.ports.http, "/ping")
            workers = self.describe().get("workers", [])
        except (OSError, ValueError, http.client.HTTPException):
            return False
        healthy = isinstance(health, dict) and health.get("status") == "Healthy"
        return healthy and bool(workers) and all(w.get("status") == "READY" for w in workers)

    def _spawn(self) -> None:
        # Short, because Unix sockets of the workers lie in it and their paths are limited to about 100 characters.
        self._home = Path(tempfile.mkdtemp(prefix="ts-"))
        properties = self._home / "config.properties"
        # The base file may lack a final newline; later settings win.
        properties.write_text(f"{self.config.read_text()}\n{self.ports.as_properties()}")
        temporary = self._home / "tmp"
        temporary.mkdir()
        command = [sys.executable, "-m", "ts.model_server"]
        command += ["--start", "--foreground", "--no-config-snapshots"]
        command += ["--model-store", str(self.archive.parent)]
        command += ["--models", f"{self.name}={self.archive.name}"]
        command += ["--ts-config", str(properties), "--log-config", str(self.log_config)]
        self._process = subprocess.Popen(
            command,
            cwd=self._home,
            env=self._variables(temporary),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            encoding="utf-8",
            errors="replace",
            start_new_session=True,
        )
        self._pump = threading.Thread(target=self._copy_log, args=(self._process,), daemon=True)
        self._pump.start()

    def _variables(self, temporary: Path) -> dict[str, str]:
        environ = {**os.environ, **self._environ}
        environ |= java_environment(environ)
        # Everything that TorchServe shares through the temporary folder stays private: its pid file, sockets, models.
        environ |= {"TMPDIR": str(temporary), "TEMP": str(temporary)}
        environ.pop("TS_CONFIG_FILE", None)  # would win over --ts-config
        return environ

    def _copy_log(self, process: subprocess.Popen[str]) -> None:
        assert process.stdout is not None
        with process.stdout, contextlib.ExitStack() as stack:
            file = None
            if self.log_file is not None:
                self.log_file.parent.mkdir(parents=True, exist_ok=True)
                file = stack.enter_context(self.log_file.open("a", encoding="utf-8"))
            for line in process.stdout:
                self._tail.append(line)
                self._load_failed = self._load_failed or any(text in line for text in _LOAD_FAILED)
                for sink in (file, self._echo):
                    # Neither a full disk nor a reader that has gone may stop the server, which waits for this one to read.
                    with contextlib.suppress(OSError):
                        if sink is not None:
                            sink.write(line)
                            sink.flush()

    def _wait_ready(self) -> None:
        assert self._process is not None
        deadline = time.monotonic() + self.start_timeout_s
        while not self.is_ready():
            if self._process.poll() is not None:
                raise self._failure(f"TorchServe ended with status {self._process.returncode}")
            if self._load_failed:
                raise self._failure(f"the model {self.name} could not be loaded")
            if time.monotonic() > deadline:
                raise self._failure(f"no answer within {self.start_timeout_s:g} s")
            time.sleep(_POLL_S)

    def _failure(self, reason: str) -> ServerFailed:
        time.sleep(0.5)  # the rest of a traceback may still be on its way
        return ServerFailed(f"{reason}; the end of its log:\n{self.log_tail()}")

    def _end(self, process: subprocess.Popen[str]) -> None:
        try:
            self._terminate(process)
        finally:
            # Whatever is left of the group: the command, Java, workers. Engines are in sessions of their own.
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            self._end_engines()

    def _terminate(self, process: subprocess.Popen[str]) -> None:
        """Asks Java itself to end; the command that started it waits for that and ends too."""
        assert self._home is not None
        try:
            java = int((self._home / "tmp" / ".model_server.pid").read_text())
            drain(self.engines(), _ENGINES_STOP_S)
            os.kill(java, signal.SIGTERM)
            process.wait(timeout=_STOP_S)
        except (OSError, ValueError, subprocess.TimeoutExpired):
            pass  # not started yet, gone already, or hung: the group gets SIGKILL

    def engines(self) -> list[psutil.Process]:
        """The engine processes of this server."""
        if self._home is None:
            return []
        return [one for one in descendants("TMPDIR", str(self._home / "tmp")) if is_engine(one)]

    def _end_engines(self) -> None:
        """Engines would end by themselves now that TorchServe is gone; asks them to, and kills one that does not."""
        engines = self.engines()
        for process in engines:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.terminate()
        _, stuck = psutil.wait_procs(engines, timeout=_ENGINES_STOP_S)
        for process in stuck:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()


def _get_json(port: int, path: str) -> Any:
    """What a GET on loopback answers; never through a proxy that the environment names."""
    connection = http.client.HTTPConnection(HOST, port, timeout=_ANSWER_S)
    try:
        connection.request("GET", path)
        response = connection.getresponse()
        return json.loads(response.read())
    finally:
        connection.close()
